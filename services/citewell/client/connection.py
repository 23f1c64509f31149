"""How the client reaches a service: plain text or TLS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from citewell.runtime.channels import open_channel
from citewell.runtime.settings import TlsClient


@dataclass(frozen=True, slots=True)
class Tls:
    """Trusted authorities and the client's own certificate. `Tls()` trusts the system's authorities."""

    ca: Path | None = None
    """PEM bundle of authorities to trust instead of the system's."""
    certificate: Path | None = None
    """PEM chain for servers that request a client certificate; needs `key`."""
    key: Path | None = None
    """PEM key of the certificate."""
    authority: str = ""
    """Name that the server's certificate must have; empty = the host of the address."""

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key are given together or not at all")


def connect(address: str, tls: Tls | None = None, token: Path | None = None) -> grpc.aio.Channel:
    """A channel with the shipped service config; it connects at the first call.

    `token` names a file with a bearer token. It is read again when it is replaced, like the certificates.
    """
    if tls is None:
        return open_channel(address, token=token)
    settings = TlsClient(enabled=True, ca=tls.ca, certificate=tls.certificate, key=tls.key, authority=tls.authority)
    return open_channel(address, settings, token=token)
