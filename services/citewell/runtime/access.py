"""Access: who calls, whether the call is allowed, and whether the client's quota allows it now."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from citewell.runtime.bearer import TokenVerifier, issuer_of
from citewell.runtime.errors import PermissionDenied, Unauthenticated, shorten
from citewell.runtime.files import Reloaded
from citewell.runtime.policy import UNLIMITED, Limits, Policy, read_policy
from citewell.runtime.quotas import Quotas
from citewell.runtime.scopes import INTERNAL, SCOPES, Scope, granted

T = TypeVar("T")

OTHER = "other"
"""The label of clients that the policy does not name, in metrics."""
_SCHEME = "bearer "


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call."""

    label: str
    """The client's name in the policy, or OTHER."""
    identity: str
    """For the log: the client's name, or the subject of its token, or the name of its certificate."""
    scopes: frozenset[Scope] = frozenset()
    limits: Limits = UNLIMITED


NOBODY = Caller("", "")
"""The caller where no policy is set, and of calls that were refused before it was known."""


@dataclass(frozen=True, slots=True)
class _Rules:
    policy: Policy
    verifiers: Mapping[str, TokenVerifier]


class Access:
    """The policy of a process, or none: then everybody may call everything."""

    def __init__(self, policy: Path | None) -> None:
        self._rules = (
            Reloaded("access policy", lambda: (policy,), lambda: _read_rules(policy)) if policy is not None else None
        )
        self._quotas = Quotas(time.monotonic)

    @property
    def restricted(self) -> bool:
        """Whether there is a policy."""
        return self._rules is not None

    def caller(self, method: str, context: Any, headers: Sequence[tuple[str, str | bytes]]) -> Caller:
        """Who makes a call. Unauthenticated or PermissionDenied unless the policy allows it."""
        if self._rules is None:
            return NOBODY
        rules = self._rules.value()
        names = _certificate_names(context.auth_context())
        tokens = [value for name, value in headers if name == "authorization"]
        caller = _by_token(rules, tokens) if tokens else _by_certificate(rules, names)
        needed = SCOPES.get(method)
        if needed is None or needed not in caller.scopes:
            scope = f"the scope {needed.value}" if needed else "a scope that nobody has"
            raise PermissionDenied(
                f"{method.rpartition('/')[2]} needs {scope}; {shorten(caller.identity)!r} does not have it",
                reason="SCOPE_MISSING",
            )
        return caller

    @contextmanager
    def quota(self, caller: Caller, weight: int = 1) -> Iterator[None]:
        """Holds a place in the caller's quota while the block runs; Overloaded when it is used up."""
        if self._rules is None:
            yield
            return
        with self._quotas.call(caller.identity, caller.limits, weight):
            yield

    async def paced(self, caller: Caller, messages: AsyncIterator[T]) -> AsyncIterator[T]:
        """The messages of a stream, each when the caller's quota allows it."""
        async for message in messages:
            if self._rules is not None:
                await self._quotas.pace(caller.identity, caller.limits)
            yield message


def _read_rules(path: Path) -> _Rules:
    policy = read_policy(path)
    return _Rules(policy, {each.issuer: TokenVerifier(each, path.parent) for each in policy.issuers})


def _by_token(rules: _Rules, tokens: Sequence[str | bytes]) -> Caller:
    """A token alone decides: who forwards a call adds no rights of its own."""
    token = tokens[0]
    if len(tokens) > 1 or not isinstance(token, str) or not token.lower().startswith(_SCHEME):
        raise Unauthenticated("authorization is not one bearer token", reason="TOKEN_REFUSED")
    token = token[len(_SCHEME) :].strip()
    verifier = rules.verifiers.get(issuer_of(token))
    if verifier is None:
        raise Unauthenticated("the token is of an issuer that the policy does not name", reason="TOKEN_REFUSED")
    bearer = verifier.bearer(token)
    name = rules.policy.by_subject.get((bearer.issuer, bearer.subject))
    if name is not None:
        return _named(rules.policy, name, bearer.scopes)
    # The issuer keeps apart equal subjects of different issuers, and subjects that are called like a client.
    identity = f"{bearer.subject} of {bearer.issuer}"
    return Caller(OTHER, identity, granted(bearer.scopes), rules.policy.limits)


def _by_certificate(rules: _Rules, names: Sequence[str]) -> Caller:
    name = next((known for each in names if (known := rules.policy.by_certificate.get(each)) is not None), None)
    if name is not None and rules.policy.clients[name].scopes:
        return _named(rules.policy, name)
    if name is not None or not names:
        raise Unauthenticated("the call carries no bearer token", reason="CREDENTIALS_MISSING")
    return Caller(OTHER, f"certificate of {names[0]}", frozenset(), rules.policy.limits)


def _named(policy: Policy, name: str, more: frozenset[Scope] = frozenset()) -> Caller:
    client = policy.clients[name]
    scopes = granted(more.union(client.scopes))
    default = UNLIMITED if INTERNAL & scopes else policy.limits
    return Caller(name, name, scopes, client.limits or default)


def _certificate_names(auth_context: Mapping[str, Sequence[bytes]]) -> list[str]:
    """Subject alternative names; of a certificate without any, its common name."""
    for kind in ("x509_subject_alternative_name", "x509_common_name"):
        if names := [each.decode("utf-8", "replace") for each in auth_context.get(kind, ()) if each]:
            return names
    return []
