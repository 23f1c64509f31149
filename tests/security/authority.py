"""A certificate authority for tests: certificates of any names and times, and files that are replaced in place."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from citewell.runtime.settings import TlsClient, TlsServer

HOUR = datetime.timedelta(hours=1)


class Authority:
    """Signs certificates; writes them, their keys and its own certificate into a folder."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _named(name)
        builder = _builder(self._subject, self._subject, self._key.public_key(), -HOUR, HOUR)
        self._certificate = builder.add_extension(x509.BasicConstraints(True, None), True).sign(
            self._key, hashes.SHA256()
        )
        self.ca = folder / "ca.pem"
        replace(self.ca, self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        file: str,
        *names: str,
        common_name: str = "",
        since: datetime.timedelta = -HOUR,
        until: datetime.timedelta = HOUR,
    ) -> tuple[Path, Path]:
        """Paths of a certificate and its key, `file`.pem and `file`.key, both replaced if they exist."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_named(common_name or file), self._subject, key.public_key(), since, until)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(list(map(_alternative, names))), False)
        signed = builder.sign(self._key, hashes.SHA256())
        certificate, private = self.folder / f"{file}.pem", self.folder / f"{file}.key"
        replace(
            private,
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )
        replace(certificate, signed.public_bytes(serialization.Encoding.PEM))
        return certificate, private

    def server(self, *, clients: bool = True) -> TlsServer:
        """Settings of a server called localhost; with `clients` it demands their certificates."""
        certificate, key = self.issue("server", "localhost")
        return TlsServer(certificate=certificate, key=key, client_ca=self._copy("server") if clients else None)

    def client(self, name: str = "client", *names: str) -> TlsClient:
        """Settings of a client with a certificate of these names."""
        certificate, key = self.issue(name, *(names or (name,)))
        return TlsClient(enabled=True, ca=self._copy(name), certificate=certificate, key=key)

    def _copy(self, owner: str) -> Path:
        """The authority's certificate in a file of its own, which may be replaced."""
        copy = self.folder / f"{owner}-trusts.pem"
        replace(copy, self.ca.read_bytes())
        return copy

    @property
    def trust(self) -> TlsClient:
        """Settings of a client that trusts this authority and has no certificate."""
        return TlsClient(enabled=True, ca=self.ca)


def replace(path: Path, content: bytes) -> None:
    """Replaces a file at once, as Kubernetes does with a mounted secret."""
    new = path.with_suffix(path.suffix + ".new")
    new.write_bytes(content)
    os.replace(new, path)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    if "@" in name:
        return x509.RFC822Name(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    since: datetime.timedelta,
    until: datetime.timedelta,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + since)
        .not_valid_after(now + until)
    )
