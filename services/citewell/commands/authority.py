"""A certificate authority of one's own, for systems on one machine and for tests. Its key is never written."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOUR = datetime.timedelta(hours=1)
YEAR = datetime.timedelta(days=365)


class Authority:
    """Signs certificates; writes them, their keys and its own certificate, `ca.pem`, into a folder."""

    def __init__(
        self, folder: Path, name: str = "citewell on this machine", lifetime: datetime.timedelta = YEAR
    ) -> None:
        self.folder, self._lifetime = folder, lifetime
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self._name, self._name, self._key.public_key(), -HOUR, lifetime)
        signed = builder.add_extension(x509.BasicConstraints(True, None), True).sign(self._key, hashes.SHA256())
        self.ca = folder / "ca.pem"
        replace(self.ca, signed.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        file: str,
        *names: str,
        common_name: str = "",
        since: datetime.timedelta = -HOUR,
        until: datetime.timedelta | None = None,
    ) -> tuple[Path, Path]:
        """Paths of a certificate and its key, `file`.pem and `file`.key; both are replaced if they exist."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name or file)])
        ends = self._lifetime if until is None else until
        builder = _builder(subject, self._name, key.public_key(), since, ends)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(list(map(_alternative, names))), False)
        signed = builder.sign(self._key, hashes.SHA256())
        certificate, private = self.folder / f"{file}.pem", self.folder / f"{file}.key"
        clear = serialization.NoEncryption()
        pem = serialization.Encoding.PEM
        replace(private, key.private_bytes(pem, serialization.PrivateFormat.PKCS8, clear))
        replace(certificate, signed.public_bytes(pem))
        return certificate, private


def replace(path: Path, content: bytes) -> None:
    """Replaces a file at once, as Kubernetes does with a mounted secret. Only its owner may read it."""
    new = path.with_suffix(path.suffix + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as written:
        written.write(content)
    os.replace(new, path)


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
