"""Bearer tokens (JWT): checked against the keys in a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt

from citewell.runtime.errors import Unauthenticated
from citewell.runtime.files import Reloaded
from citewell.runtime.policy import Issuer
from citewell.runtime.scopes import Scope
from citewell.runtime.settings import UnknownSetting

MAX_TOKEN = 8192
"""The longest token, in characters."""
_REQUIRED = ["exp", "iss", "aud", "sub"]


@dataclass(frozen=True, slots=True)
class Bearer:
    """Who a valid token stands for, and the scopes that its claim grants."""

    issuer: str
    subject: str
    scopes: frozenset[Scope]


class TokenVerifier:
    """Checks the tokens of one issuer."""

    def __init__(self, issuer: Issuer, folder: Path) -> None:
        self._issuer = issuer
        path = folder / issuer.keys
        self._keys = Reloaded("keys", lambda: (path,), lambda: _read_keys(path))

    def bearer(self, token: str) -> Bearer:
        """The bearer of a token; Unauthenticated when it is not valid."""
        told = self._issuer
        try:
            key = self._key(token)
            claims = jwt.decode(
                token,
                key.key,
                algorithms=list(told.algorithms),
                issuer=told.issuer,
                audience=told.audience,
                leeway=told.leeway_seconds,
                options={"require": _REQUIRED},
            )
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("the token has expired", reason="TOKEN_EXPIRED") from None
        except (jwt.PyJWTError, TypeError, ValueError) as error:  # the latter two: a key of another kind
            why = str(error) if isinstance(error, jwt.PyJWTError) else "its algorithm does not fit its key"
            raise Unauthenticated(f"the token is not valid: {why}", reason="TOKEN_REFUSED") from None
        return Bearer(told.issuer, claims["sub"], frozenset(told.scopes) & _scopes(claims.get(told.scope_claim)))

    def _key(self, token: str) -> jwt.PyJWK:
        keys = self._keys.value()
        kid = jwt.get_unverified_header(token).get("kid")
        if kid is None and len(keys) == 1:
            return next(iter(keys.values()))
        if not isinstance(kid, str) or kid not in keys:
            raise jwt.InvalidTokenError("its key is none of the issuer's")
        return keys[kid]


def issuer_of(token: str) -> str:
    """The issuer that a token names, not yet verified; Unauthenticated for what is no token."""
    if len(token) > MAX_TOKEN:
        raise Unauthenticated(f"the token is longer than {MAX_TOKEN} characters", reason="TOKEN_REFUSED")
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise Unauthenticated("the bearer token is no JWT", reason="TOKEN_REFUSED") from None
    return str(claims.get("iss", ""))


def _scopes(claim: object) -> set[Scope]:
    """The scopes that a claim names; unknown ones are those of other systems."""
    named = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else ()
    return {Scope(each) for each in named if isinstance(each, str) and each in set(Scope)}


def _read_keys(path: Path) -> dict[str, jwt.PyJWK]:
    """Public keys by id."""
    try:
        stated: Any = json.loads(path.read_text(encoding="utf-8"))
        entries = [each for each in stated["keys"] if each.get("use", "sig") == "sig"]
        if secret := next((each for each in entries if each.get("kty") == "oct" or "d" in each), None):
            raise UnknownSetting(f"the key {secret.get('kid')!r} in '{path}' is secret; publish public keys only")
        keys = {str(each.get("kid", number)): jwt.PyJWK(each) for number, each in enumerate(entries)}
    except OSError as error:
        raise UnknownSetting(f"keys is '{path}', which cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, jwt.PyJWTError) as error:
        raise UnknownSetting(f"keys is '{path}', which is no JWKS: {error}") from None
    if not keys:
        raise UnknownSetting(f"keys is '{path}', which holds no key")
    return keys
