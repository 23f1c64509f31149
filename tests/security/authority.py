"""Certificates for tests, and the settings of servers and clients that use them."""

from __future__ import annotations

from pathlib import Path

from citewell.commands.authority import HOUR, replace
from citewell.commands.authority import Authority as AnyAuthority
from citewell.runtime.settings import TlsClient, TlsServer

__all__ = ["HOUR", "Authority", "replace"]


class Authority(AnyAuthority):
    """An authority whose certificates expire soon."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "test authority", HOUR)

    def server(self, *, clients: bool = True) -> TlsServer:
        """Settings of a server called localhost; with `clients` it demands their certificates."""
        certificate, key = self.issue("server", "localhost")
        return TlsServer(certificate=certificate, key=key, client_ca=self._copy("server") if clients else None)

    def client(self, name: str = "client", *names: str) -> TlsClient:
        """Settings of a client with a certificate of these names."""
        certificate, key = self.issue(name, *(names or (name,)))
        return TlsClient(enabled=True, ca=self._copy(name), certificate=certificate, key=key)

    @property
    def trust(self) -> TlsClient:
        """Settings of a client that trusts this authority and has no certificate."""
        return TlsClient(enabled=True, ca=self.ca)

    def _copy(self, owner: str) -> Path:
        """The authority's certificate in a file of its own, which may be replaced."""
        copy = self.folder / f"{owner}-trusts.pem"
        replace(copy, self.ca.read_bytes())
        return copy
