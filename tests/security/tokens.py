"""An issuer of tokens for tests: a signing key, its JWKS file, and tokens of any claims."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from tests.security.authority import replace

AUDIENCE = "citewell"


class TokenIssuer:
    """Signs tokens; its public keys are in `keys`."""

    def __init__(self, folder: Path, name: str = "https://login.example") -> None:
        self.name, self.keys = name, folder / f"{len(name)}-jwks.json"
        self.rotate("first")

    def rotate(self, kid: str) -> None:
        """A new key instead of the one before."""
        self.kid, self.key = kid, ec.generate_private_key(ec.SECP256R1())
        public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.key.public_key()))
        replace(self.keys, json.dumps({"keys": [{**public, "kid": kid, "use": "sig", "alg": "ES256"}]}).encode())

    def token(self, subject: str = "somebody", scope: object = "recommend", **claims: Any) -> str:
        """A valid token, unless the claims make it another one; a claim that is None is left out."""
        now = int(time.time())
        told = {"iss": self.name, "aud": AUDIENCE, "sub": subject, "scope": scope, "iat": now, "exp": now + 300}
        stated = {name: value for name, value in (told | claims).items() if value is not None}
        return jwt.encode(stated, self.key, "ES256", {"kid": self.kid})

    def bearer(self, *args: Any, **claims: Any) -> str:
        """The header's value."""
        return f"Bearer {self.token(*args, **claims)}"
