"""Settings of the edge: CITEWELL_EDGE__<NAME>."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from citewell.runtime.settings import ServiceSettings


class EdgeSettings(ServiceSettings):
    """The edge's settings. `port` serves gRPC health checks; HTTP has a port of its own."""

    model_config = SettingsConfigDict(env_prefix="CITEWELL_EDGE__")

    http_port: int = Field(0, ge=0, le=65535)
    """Port of HTTP on `host`; 0 takes a free one and logs it."""
    recommender_address: str = Field("127.0.0.1:7300", min_length=1)
    """The recommender."""
    page: bool = True
    """Serve the page for writers at /."""
    allowed_origins: tuple[str, ...] = ()
    """Other origins whose pages may call the API (CORS), e.g. '["https://editor.example"]'; '["*"]' = any."""
    max_request_megabytes: int = Field(8, ge=1, le=64)
    """Largest request; a draft of 2 MB takes 2.7 MB in JSON."""
    max_in_flight: int = Field(64, ge=1)
    """The most requests in progress; further ones get 503 at once."""
    max_connections: int = Field(1000, ge=1)
    """The most connections; requests on further ones get 503 at once."""
    max_receiving_megabytes: int = Field(128, ge=1)
    """The most bytes of requests that are being received or answered; what exceeds them gets 503 at once."""
    receive_seconds: float = Field(30.0, gt=0)
    """Connections that take longer to send a whole request, or send none, are closed."""
    send_seconds: float = Field(30.0, gt=0)
    """Connections that take nothing of an answer for so long are closed."""
    longest_deadline_seconds: float = Field(600.0, gt=0)
    """The longest deadline; requests with longer ones are cut to it."""

    @model_validator(mode="after")
    def _no_rights_of_its_own(self) -> Self:
        if self.client_token or self.access_policy:
            raise ValueError("client_token and access_policy are not for the edge: it passes on its callers' tokens")
        return self
