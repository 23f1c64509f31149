"""The Kafka broker in ingestion's settings, and what kafka-python's clients are built with."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

# The protocol version. Without it the client's constructor asks the broker, and leaks a thread if there is none.
_API_VERSION = (4, 0)
LINGER_MILLISECONDS = 2
"""How long an append waits for others to share its request."""


class KafkaSettings(BaseModel):
    """The broker, the credentials for it, and timeouts."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    bootstrap_servers: str = Field("127.0.0.1:9092", min_length=1)
    """host:port of one or more brokers, comma-separated."""
    topic: str = Field("citewell.publications.v1", min_length=1)
    """Topic of the published events."""
    dead_letter_topic: str = Field("citewell.publications.dead-letters.v1", min_length=1)
    """Topic of the events that can never be applied."""
    feedback_topic: str = Field("citewell.feedback.v1", min_length=1)
    """Topic of what writers chose. Used once the recommender's settings allow feedback."""
    tls: bool = False
    """Use TLS to the brokers."""
    ca: Path | None = None
    """PEM bundle to trust instead of the system's."""
    certificate: Path | None = None
    """PEM certificate chain for brokers that ask for one."""
    key: Path | None = None
    """PEM key of the certificate."""
    sasl_mechanism: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = ""
    """SASL mechanism; empty = no login."""
    username: str = ""
    """SASL user."""
    password: SecretStr = SecretStr("")
    """SASL password."""
    most_message_megabytes: int = Field(9, ge=1)
    """Largest record sent; a little more than the largest event."""
    request_seconds: float = Field(10.0, gt=0)
    """Timeout of one request, and of finding a broker."""
    delivery_seconds: float = Field(30.0, gt=0)
    """How long an append is retried; after that Publish answers UNAVAILABLE. Longer than request_seconds."""
    session_seconds: float = Field(15.0, gt=0)
    """A worker that sends no heartbeat for so long loses its partitions."""
    hand_over_seconds: float = Field(5.0, ge=0)
    """How long a rebalance waits until the fetched records of a moving partition are committed."""
    stuck_seconds: float = Field(60.0, gt=0)
    """A client call that blocks for longer ends the process."""

    @model_validator(mode="after")
    def _sasl_needs_a_user(self) -> Self:
        if self.sasl_mechanism and not self.username:
            raise ValueError("sasl_mechanism needs a username")
        return self

    @model_validator(mode="after")
    def _a_delivery_has_time_for_a_request(self) -> Self:
        if self.delivery_seconds <= self.request_seconds + LINGER_MILLISECONDS / 1000:
            raise ValueError(f"delivery_seconds is {self.delivery_seconds:g}; expected more than request_seconds")
        return self

    def client(self) -> dict[str, Any]:
        """What every kafka-python client is built with."""
        options: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_servers.split(","),
            "api_version": _API_VERSION,
            "request_timeout_ms": milliseconds(self.request_seconds),
            "bootstrap_timeout_ms": milliseconds(self.request_seconds),
            "reconnect_backoff_max_ms": 2_000,
            "security_protocol": ("SASL_" if self.sasl_mechanism else "") + ("SSL" if self.tls else "PLAINTEXT"),
        }
        if self.tls:
            context = ssl.create_default_context(cafile=str(self.ca) if self.ca else None)
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key)
            options["ssl_context"] = context
        if self.sasl_mechanism:
            options |= {
                "sasl_mechanism": self.sasl_mechanism,
                "sasl_plain_username": self.username,
                "sasl_plain_password": self.password.get_secret_value(),
            }
        return options


def milliseconds(seconds: float) -> int:
    return int(seconds * 1000)
