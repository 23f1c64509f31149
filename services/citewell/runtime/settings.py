"""Settings: one frozen model a service, read from the environment once, at start."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

NESTING = "__"
FROM_FILE = "_FILE"
"""NAME_FILE names a file whose text is the value of the setting NAME."""


class UnknownSetting(Exception):
    """A setting's name or value is wrong; the message names both."""


class TlsServer(BaseModel):
    """TLS of a server."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    certificate: Path | None = None
    """PEM chain of the server; without it the server speaks plain text."""
    key: Path | None = None
    """PEM key of the certificate."""
    client_ca: Path | None = None
    """PEM bundle; set, it demands a client certificate signed by one of these."""

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key are set together or not at all")
        return self


class TlsClient(BaseModel):
    """TLS of a client."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    enabled: bool = False
    """Speak TLS to the other services."""
    ca: Path | None = None
    """PEM bundle to trust instead of the system's."""
    certificate: Path | None = None
    """PEM chain shown to servers that demand one."""
    key: Path | None = None
    """PEM key of the certificate."""
    authority: str = ""
    """Name that the server's certificate must have, where it is not the host of the address; empty = that host."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key are set together or not at all")
        given = [name for name in ("ca", "certificate", "authority") if getattr(self, name)]
        if given and not self.enabled:
            raise ValueError(f"{given[0]} is set, but enabled is not: the connection would be plain text")
        return self


class ServiceSettings(BaseSettings):
    """What every service can be told. Subclasses add their own and set the prefix, e.g. CITEWELL_INDEX__."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_nested_delimiter=NESTING, use_attribute_docstrings=True
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, _Environment(settings_cls)

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 in a pod."""
    port: int = Field(0, ge=0, le=65535)
    """Port to listen on; 0 takes a free one and logs it."""
    metrics_port: int = Field(0, ge=0, le=65535)
    """Port of the Prometheus endpoint; 0 = none."""
    otlp_endpoint: str = ""
    """OTLP/gRPC collector for traces and metrics, e.g. http://collector:4317; empty = none."""
    log_level: str = Field("INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$")
    """Lowest level that is logged."""
    default_deadline_seconds: float = Field(30.0, gt=0)
    """Deadline of unary calls that come without one."""
    drain_seconds: float = Field(0.2, ge=0)
    """After SIGTERM: how long to go on serving while clients and load balancers notice NOT_SERVING."""
    grace_seconds: float = Field(10.0, ge=0)
    """After draining: how long calls in flight may take to finish."""
    max_connection_age_seconds: float = Field(300.0, gt=0)
    """Connections are closed gracefully after this age, so that clients find new pods."""
    max_message_megabytes: int = Field(32, ge=1, le=1024)
    """Largest message received or sent."""
    most_calls: int = Field(512, ge=1)
    """Calls of one method in progress or waiting; more are refused at once, with the time after which to retry."""
    most_request_megabytes: int = Field(64, ge=1)
    """Bytes of all requests in progress; more are refused at once. A larger request is taken when it is alone."""
    longest_wait_seconds: float = Field(5.0, gt=0)
    """EmbedQuery: a call that would take longer, or longer than its deadline, is refused at once."""
    tls: TlsServer = TlsServer()
    """This server's certificate."""
    client_tls: TlsClient = TlsClient()
    """Used on channels to the other services."""
    client_token: Path | None = None
    """File with the bearer token that this service sends to the other services; read again when it is replaced."""
    access_policy: Path | None = None
    """JSON file that says who may call what, and how often (deploy/docs/security.md); empty = everybody everything."""
    health_port: int = Field(0, ge=0, le=65535)
    """Port of health checks alone, in plain text: for probes, when TLS is on; 0 = none but those on `port`."""
    most_connections: int = Field(2000, ge=1)
    """Connections at the same time; further ones are closed at once."""
    handshake_seconds: float = Field(10.0, gt=0)
    """A connection whose TLS and HTTP/2 greeting takes longer is closed."""

    @model_validator(mode="after")
    def _no_tokens_in_plain_text(self) -> Self:
        if self.access_policy and not self.tls.certificate and not on_this_machine(self.host):
            raise ValueError("access_policy is set without tls.certificate: tokens would travel in plain text")
        return self


S = TypeVar("S", bound=ServiceSettings)


def on_this_machine(host: str) -> bool:
    """Whether a host is this one, so that nothing travels over a network."""
    return host in ("localhost", "::1") or host.startswith("127.")


def load_settings(kind: type[S]) -> S:
    """The settings from the environment. Exits with one clear line when one is wrong, or for --print-config."""
    try:
        settings = read_settings(kind)
    except UnknownSetting as error:
        print(f"citewell: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    if "--print-config" in sys.argv[1:]:
        print(without_passwords(json.dumps(settings.model_dump(mode="json"), indent=2)))
        raise SystemExit(0)
    return settings


# The password in user:password@host. It may contain colons and @.
_PASSWORD = re.compile(r"(://[^\s/:@\"']*:)[^\s/\"']+(?=@)")
# Settings whose values are never printed, whatever is wrong with them.
_SECRET = re.compile(r"PASSWORD|SECRET|TOKEN|API_KEY|CREDENTIAL")


def without_passwords(text: str) -> str:
    """The text with the passwords of the addresses in it masked."""
    return _PASSWORD.sub(r"\1***", text)


def read_settings(kind: type[S]) -> S:
    """The settings from the environment, or UnknownSetting."""
    prefix = str(kind.model_config.get("env_prefix", ""))
    for name in sorted(os.environ):
        if name.upper().startswith(prefix):
            path = _path(name, prefix)
            base = _without_file(kind, path)
            if base is None:
                _require_known(kind, name, path)
            elif any(other.upper() == name.upper().removesuffix(FROM_FILE) for other in os.environ):
                raise UnknownSetting(f"{name} and {name.removesuffix(FROM_FILE)} are both set; set one of them")
    try:
        return kind()
    except ValidationError as error:
        problem = error.errors()[0]
        name = prefix + NESTING.join(str(part).upper() for part in problem["loc"])
        raise UnknownSetting(f"setting {name}{_told(name, problem['input'])}: {problem['msg']}") from None
    except (SettingsError, RecursionError) as error:  # a group that is no JSON; which one, the message says
        raise UnknownSetting(f"settings {prefix}…: {str(error).partition(' from source')[0]}") from None


class _Environment(EnvSettingsSource):
    """The environment, where NAME_FILE stands for the text of a file."""

    def _load_env_vars(self) -> dict[str, str | None]:
        told = dict(super()._load_env_vars())
        prefix = self.env_prefix.lower()
        for name in [each for each in told if each.startswith(prefix) and each.endswith(FROM_FILE.lower())]:
            if _without_file(self.settings_cls, _path(name, prefix)) is None:
                continue
            file, shown = told.pop(name), name.upper()
            told[name.removesuffix(FROM_FILE.lower())] = read_secret(shown, Path(file or ""))
        return told


def read_secret(setting: str, path: Path) -> str:
    """The text of a file, without the white space around it; UnknownSetting, without the text, if it cannot be used."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UnknownSetting(f"{setting} is '{path}', which cannot be read: {why}") from None
    if not text:
        raise UnknownSetting(f"{setting} is '{path}', which is empty")
    return text


def _path(name: str, prefix: str) -> list[str]:
    return name.upper().removeprefix(prefix.upper()).lower().split(NESTING)


def _without_file(kind: type[BaseModel], path: list[str]) -> list[str] | None:
    """The path of the setting that NAME_FILE stands for; None when the path is no such name."""
    base = [*path[:-1], path[-1].removesuffix(FROM_FILE.lower())]
    return base if base != path and not _is_known(kind, path) and _is_known(kind, base) else None


def _is_known(kind: Any, path: list[str]) -> bool:
    for part in path:
        fields = getattr(kind, "model_fields", {})
        if part not in fields:
            return False
        kind = fields[part].annotation
    return True


def _require_known(kind: type[BaseModel], name: str, path: list[str]) -> None:
    model: Any = kind
    for part in path:
        fields = getattr(model, "model_fields", {})
        if part not in fields:
            known = ", ".join(sorted(field.upper() for field in fields)) or "no setting of that kind"
            # Without its value: a misspelt name may be that of a secret.
            raise UnknownSetting(f"unknown setting {name}; known here: {known}")
        model = fields[part].annotation


def _told(name: str, value: object) -> str:
    """What an error may say of a setting's value. A group of settings may hold a secret, so it is not shown."""
    if _SECRET.search(name.upper()) or not isinstance(value, str | int | float | bool):
        return ""
    text = without_passwords(str(value))
    return f" is {text if len(text) <= 60 else text[:59] + '…'!r}"
