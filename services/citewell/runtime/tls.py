"""TLS credentials from the PEM files that the settings name. Replaced files are used without a restart."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc
from cryptography import x509

from citewell.runtime import telemetry
from citewell.runtime.files import Reloaded
from citewell.runtime.settings import TlsClient, TlsServer, UnknownSetting

_expiry = telemetry.meter.create_gauge(
    "citewell_certificate_expires", unit="s", description="When the own certificate expires, in seconds since 1970"
)


def client_credentials(tls: TlsClient) -> grpc.ChannelCredentials:
    """Credentials of a channel; UnknownSetting when a file cannot be used."""
    ca = _read_pem("client_tls.ca", tls.ca)
    key, certificate = _read_pem("client_tls.key", tls.key), _read_pem("client_tls.certificate", tls.certificate)
    if tls.certificate and tls.key:
        _require_pair("client_tls", tls.certificate, tls.key)
    _record_expiry("client", certificate)
    return grpc.ssl_channel_credentials(ca, key, certificate)


def client_files(tls: TlsClient) -> tuple[Path, ...]:
    """The files that client_credentials() reads."""
    return tuple(path for path in (tls.ca, tls.certificate, tls.key) if path)


def server_credentials(tls: TlsServer) -> grpc.ServerCredentials:
    """Credentials of a gRPC server; UnknownSetting when a file cannot be used.

    Each new connection gets the certificate, and is checked against the authorities, that are in the files then.
    """

    def read() -> grpc.ServerCertificateConfiguration:
        require_usable(tls)
        key, certificate = _read_pem("tls.key", tls.key), _read_pem("tls.certificate", tls.certificate)
        assert key is not None
        assert certificate is not None
        _record_expiry("server", certificate)
        return grpc.ssl_server_certificate_configuration(
            [(key, certificate)], _read_pem("tls.client_ca", tls.client_ca)
        )

    files = Reloaded("tls", lambda: server_files(tls), read, every=0)
    return grpc.dynamic_ssl_server_credentials(
        files.value(), files.value, require_client_authentication=tls.client_ca is not None
    )


def http_context(tls: TlsServer) -> ssl.SSLContext:
    """The TLS context of an HTTP server, with the same checks and the same replacement of files."""

    def read() -> ssl.SSLContext:
        require_usable(tls)
        assert tls.certificate is not None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tls.certificate, tls.key)
        if tls.client_ca:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(tls.client_ca)
        _record_expiry("server", tls.certificate.read_bytes())
        return context

    files = Reloaded("tls", lambda: server_files(tls), read, every=0)

    def choose(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        connection.context = files.value()

    first = files.value()
    first.sni_callback = choose
    return first


def server_files(tls: TlsServer) -> tuple[Path, ...]:
    """The files that a server's credentials are read from."""
    return tuple(path for path in (tls.certificate, tls.key, tls.client_ca) if path)


def require_usable(tls: TlsServer) -> None:
    """Raises UnknownSetting, naming the file, when a server cannot use these settings."""
    if tls.key is None or tls.certificate is None:
        raise UnknownSetting("tls.certificate and tls.key are not set")
    for setting, path in (("key", tls.key), ("certificate", tls.certificate), ("client_ca", tls.client_ca)):
        _read_pem(f"tls.{setting}", path)
    _require_pair("tls", tls.certificate, tls.key)


def _require_pair(setting: str, certificate: Path, key: Path) -> None:
    """Checked here because gRPC would only refuse every connection."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError):
        raise UnknownSetting(
            f"{setting}.certificate '{certificate}' and {setting}.key '{key}' are no certificate and its key"
        ) from None


def _record_expiry(role: str, certificate: bytes | None) -> None:
    if certificate:
        expires = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
        _expiry.set(int(expires.timestamp()), {"role": role})


def _read_pem(setting: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UnknownSetting(f"{setting} is '{path}', which cannot be read: {error.strerror}") from None
    if b"-----BEGIN " not in content:
        raise UnknownSetting(f"{setting} is '{path}', which is not a PEM file")
    return content
