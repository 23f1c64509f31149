"""The access policy: a JSON file that says who a client is, what it may do, and how much of it."""

from __future__ import annotations

import json
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from citewell.runtime.scopes import INTERNAL, Scope
from citewell.runtime.settings import UnknownSetting

Text = Annotated[str, Field(min_length=1)]
# Asymmetric only: with a shared secret, every service that checks tokens could also issue them.
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Limits(_Part):
    """How much a client may do in each process. 0 = no limit."""

    calls_per_second: float = Field(0.0, ge=0)
    """Calls in the long run; each query of a RecommendBatch and each message of a stream counts."""
    burst: int = Field(0, ge=0)
    """Calls at once after a pause; 0 = the calls of two seconds, at least one."""
    concurrent: int = Field(0, ge=0)
    """Calls in progress."""


UNLIMITED = Limits()


class Issuer(_Part):
    """Who issues tokens (JWT), and how they are checked."""

    issuer: Text
    """The claim `iss`."""
    audience: Text
    """What the claim `aud` must contain."""
    keys: Path
    """JWKS file with the issuer's public keys; relative to the policy's folder. Read again when it is replaced."""
    scopes: tuple[Scope, ...] = (Scope.RECOMMEND,)
    """The scopes that a token may grant to its bearer by its claim. Others in the claim are ignored."""
    scope_claim: Text = "scope"
    """The claim with the scopes: a list, or a text with spaces."""
    algorithms: tuple[Algorithm, ...] = ("RS256", "ES256", "EdDSA")
    """Algorithms of the signature."""
    leeway_seconds: float = Field(30.0, ge=0, le=300)
    """How far the clocks may differ."""

    @model_validator(mode="after")
    def _callers_only(self) -> Self:
        if INTERNAL & set(self.scopes):
            raise ValueError("a claim cannot grant internal scopes; name the service as a client")
        return self


class Client(_Part):
    """A client with a name of its own in logs and metrics."""

    certificates: tuple[Text, ...] = ()
    """Names of its certificate: a subject alternative name, or the common name of a certificate without any."""
    issuer: str = ""
    """The issuer of its tokens."""
    subject: str = ""
    """The claim `sub` of its tokens."""
    scopes: tuple[Scope, ...] = ()
    """What it may do. None: it only forwards calls that carry the token of another client."""
    limits: Limits | None = None
    """Its own limits instead of those of the policy, which do not apply to services."""

    @model_validator(mode="after")
    def _recognisable(self) -> Self:
        if bool(self.issuer) != bool(self.subject):
            raise ValueError("issuer and subject are given together")
        if not (self.certificates or self.subject):
            raise ValueError("a client needs certificates, or issuer and subject")
        return self


class Policy(_Part):
    """Who may call what."""

    issuers: tuple[Issuer, ...] = ()
    """Issuers of tokens."""
    clients: dict[Text, Client] = {}
    """Clients by name."""
    limits: Limits = UNLIMITED
    """Limits of every client without its own."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        issuers = [each.issuer for each in self.issuers]
        names = [name for client in self.clients.values() for name in client.certificates]
        subjects = [(client.issuer, client.subject) for client in self.clients.values() if client.subject]
        stated: tuple[tuple[str, list[Any]], ...] = (
            ("issuer", issuers),
            ("certificate name", names),
            ("subject", subjects),
        )
        for what, given in stated:
            twice = next((each for each, count in Counter(given).items() if count > 1), None)
            if twice is not None:
                raise ValueError(f"the {what} {twice!r} is given twice")
        for issuer, _ in subjects:
            if issuer not in issuers:
                raise ValueError(f"a client's issuer is {issuer!r}, which is none of the issuers")
        return self

    @cached_property
    def by_certificate(self) -> dict[str, str]:
        """Client names by names of certificates."""
        return {one: name for name, client in self.clients.items() for one in client.certificates}

    @cached_property
    def by_subject(self) -> dict[tuple[str, str], str]:
        """Client names by issuer and subject."""
        return {(client.issuer, client.subject): name for name, client in self.clients.items() if client.subject}


def read_policy(path: Path) -> Policy:
    """The policy in a file; UnknownSetting, with the place of the fault, when it cannot be used."""
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnknownSetting(f"access_policy is '{path}', which cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UnknownSetting(f"access_policy is '{path}', which is no JSON: {error}") from None
    try:
        return Policy.model_validate(stated)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"])) or "the policy"
        raise UnknownSetting(f"access_policy '{path}': {place}: {problem['msg']}") from None
