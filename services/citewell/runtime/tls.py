"""TLS credentials from the PEM files that the settings name."""

from __future__ import annotations

from pathlib import Path

import grpc

from citewell.runtime.settings import TlsClient, TlsServer, UnknownSetting


def client_credentials(tls: TlsClient) -> grpc.ChannelCredentials:
    """Credentials of a channel; UnknownSetting when a file cannot be used."""
    return grpc.ssl_channel_credentials(
        _read_pem("client_tls.ca", tls.ca),
        _read_pem("client_tls.key", tls.key),
        _read_pem("client_tls.certificate", tls.certificate),
    )


def server_credentials(tls: TlsServer) -> grpc.ServerCredentials:
    """Credentials of a server; UnknownSetting when a file cannot be used."""
    key, certificate = _read_pem("tls.key", tls.key), _read_pem("tls.certificate", tls.certificate)
    if key is None or certificate is None:
        raise UnknownSetting("tls.certificate and tls.key are not set")
    roots = _read_pem("tls.client_ca", tls.client_ca)
    return grpc.ssl_server_credentials([(key, certificate)], roots, require_client_auth=roots is not None)


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
