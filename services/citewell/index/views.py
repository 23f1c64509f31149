"""Views: complete, named sets of papers and spans of one encoder and one set of weights. One of them is served."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from citewell.index.points import SCHEMA_VERSION
from citewell.runtime.errors import FailedPrecondition, InvalidField, NotFound

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
MAX_DIMENSION = 4096


@dataclass(frozen=True, slots=True)
class View:
    """The fixed properties of a view. Other properties need another view."""

    name: str
    epoch: str
    model_hash: str
    dimension: int
    settings_hash: str = ""
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        # The name becomes a folder and a collection.
        if not _NAME.fullmatch(self.name):
            raise InvalidField("index_view", self.name, "1 to 64 lower-case letters, digits, - or _")
        if not 1 <= self.dimension <= MAX_DIMENSION:
            raise InvalidField("dimension", self.dimension, f"1 to {MAX_DIMENSION}")
        for name in ("epoch", "model_hash"):
            if not getattr(self, name):
                raise InvalidField(name, "", "a value: it tells this view from any other")


@dataclass(frozen=True, slots=True)
class Registry:
    """The existing views, and the serving one."""

    views: Mapping[str, View] = field(default_factory=dict)
    serving: str = ""

    def resolve(self, name: str) -> View:
        """The named view, or the serving one for an empty name."""
        if not name and not self.serving:
            raise FailedPrecondition("no view is served yet; create one and serve it", reason="NO_VIEW")
        view = self.views.get(name or self.serving)
        if view is None:
            known = ", ".join(sorted(self.views)) or "none"
            raise NotFound(f"index_view is {name!r}; known views: {known}", reason="UNKNOWN_VIEW", index_view=name)
        return view


def require_same(stored: View, given: View) -> None:
    """Raises FAILED_PRECONDITION with both values if an existing view is requested with other properties."""
    for property_ in fields(View):
        old, new = getattr(stored, property_.name), getattr(given, property_.name)
        if old != new:
            raise FailedPrecondition(
                f"view {stored.name!r} exists with {property_.name} {old!r}, not {new!r}",
                reason="VIEW_DIFFERS",
                property=property_.name,
                stored=old,
                given=new,
            )


def require_epoch(view: View, epoch: str) -> None:
    """Raises FAILED_PRECONDITION for a write with another epoch of the ledger: the view must be rebuilt."""
    if epoch != view.epoch:
        raise FailedPrecondition(
            f"view {view.name!r} holds epoch {view.epoch!r}, the write comes from {epoch!r}: rebuild the view",
            reason="EPOCH_MISMATCH",
            stored=view.epoch,
            given=epoch,
        )


def require_model(view: View, model_hash: str) -> None:
    """Raises FAILED_PRECONDITION for a vector of another encoder; an empty hash is not checked."""
    if model_hash and model_hash != view.model_hash:
        raise FailedPrecondition(
            f"view {view.name!r} holds vectors of model {view.model_hash!r}, the query's is {model_hash!r}",
            reason="MODEL_MISMATCH",
            stored=view.model_hash,
            given=model_hash,
        )


def is_readable(stored: int) -> bool:
    """False for an older schema: such a view is dropped, and the profiler fills it anew from the ledger.

    FAILED_PRECONDITION for a newer one, which a later release wrote and still needs.
    """
    if stored > SCHEMA_VERSION:
        raise FailedPrecondition(
            f"the store has schema version {stored}, this program reads {SCHEMA_VERSION}: a later release wrote it",
            reason="SCHEMA_MISMATCH",
            stored=stored,
            given=SCHEMA_VERSION,
        )
    return stored == SCHEMA_VERSION
