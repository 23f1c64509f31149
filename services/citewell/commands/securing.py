"""`citewell up --secured`: certificates, a policy and a token for the services on this machine."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from citewell.client import Tls
from citewell.commands.authority import Authority, replace

ISSUER, AUDIENCE = "citewell up", "citewell"
_TOKEN_SECONDS = 30 * 24 * 3600
_SCOPES = {
    "recommender": ["internal.read"],
    "profiler": ["internal.read", "internal.write"],
    "ingestion": ["internal.write"],
    "index": [],
    "reranker": [],
    "edge": [],
    "operator": ["recommend", "publish", "operate"],
}


@dataclass(frozen=True, slots=True)
class Secured:
    """Settings of the services, the operator's certificate for commands, and a token for the HTTP edge."""

    settings: dict[str, str]
    operator: Tls
    writer_token: Path


def secure(folder: Path) -> Secured:
    """New certificates and keys in a folder; those of an earlier start are replaced."""
    authority = Authority(folder)
    policy = _write_policy(folder)
    settings: dict[str, str] = {}
    for service in _SCOPES:
        certificate, key = authority.issue(service, service, "localhost", "127.0.0.1")
        if service == "operator":
            continue
        prefix = f"CITEWELL_{service.upper()}__"
        files = {"CERTIFICATE": certificate, "KEY": key}
        settings |= {f"{prefix}TLS__{name}": str(path) for name, path in files.items()}
        files["CA"] = authority.ca
        settings |= {f"{prefix}CLIENT_TLS__{name}": str(path) for name, path in files.items()}
        settings[f"{prefix}CLIENT_TLS__ENABLED"] = "true"
        if service != "edge":  # browsers have no certificates; their tokens are checked by the recommender
            settings |= {f"{prefix}TLS__CLIENT_CA": str(authority.ca), f"{prefix}ACCESS_POLICY": str(policy)}
    operator = Tls(authority.ca, folder / "operator.pem", folder / "operator.key")
    return Secured(settings, operator, folder / "writer.token")


def _write_policy(folder: Path) -> Path:
    """The policy, and a token that it accepts for `recommend`. The key that signed the token is forgotten."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
    replace(folder / "jwks.json", json.dumps({"keys": [{**public, "kid": "up", "use": "sig"}]}).encode())
    issuer = {"issuer": ISSUER, "audience": AUDIENCE, "keys": "jwks.json", "scopes": ["recommend"]}
    clients = {name: {"certificates": [name], "scopes": scopes} for name, scopes in _SCOPES.items()}
    path = folder / "policy.json"
    replace(path, json.dumps({"issuers": [issuer], "clients": clients}, indent=2).encode())
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "writer", "scope": "recommend"}
    token = jwt.encode({**claims, "exp": int(time.time()) + _TOKEN_SECONDS}, key, "ES256", {"kid": "up"})
    replace(folder / "writer.token", token.encode())
    return path
