"""The port for storage engines: a store has views, and each view has two sets of points."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Protocol
from uuid import UUID

from citewell.index.filters import Condition
from citewell.index.points import Point, Sparse, Vector
from citewell.index.second_phase_model import SecondPhase, SecondScore
from citewell.index.views import Registry, View
from citewell.scholarly.lexical import NO_TERMS, LexicalQuery, Terms


class Kind(Enum):
    """The two sets of points of a view."""

    PAPERS = "papers"
    SPANS = "spans"


@dataclass(frozen=True, slots=True, eq=False)
class Nearest:
    """The `limit` best points among those that meet every condition.

    By a stored vector `field` is its name; without a vector the newest points come first. By words `lexical` is set,
    and `field` is LEXICAL, or HYBRID for words and profile together.
    """

    field: str
    vector: Vector | Sparse | None
    limit: int
    conditions: tuple[Condition, ...] = ()
    exact: bool = False
    lexical: LexicalQuery | None = None
    matched_terms: int = 0
    """The most matched terms that a hit names."""
    payload: tuple[str, ...] = ()
    """The payload fields to return; empty = all but the bags of words."""
    second: SecondPhase | None = None
    """For HYBRID: ranks the best candidates again."""


@dataclass(frozen=True, slots=True, eq=False)
class Hit:
    """A point found, and its score: cosine, sum of cosine and words, or its last day when the newest were asked for."""

    point: Point
    score: float
    profile: float = 0.0
    """The cosine in a HYBRID score."""
    lexical: float = 0.0
    """The lexical score, before it is weighted."""
    matched: Terms = NO_TERMS
    """The matched terms with the largest shares of the lexical score, and these shares."""
    second: SecondScore | None = None
    """What the second phase says, if it ranked the point."""

    @property
    def order(self) -> tuple[float, float]:
        """What a ranking goes by, the smallest first: those that the second phase ranked, by its score; then others."""
        return (-self.second.score if self.second else inf), -self.score


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """The hits of each query, the engine that found them, and whether it scored every point."""

    hits: list[list[Hit]]
    engine: str
    exact: bool
    ties_in_order: bool = False
    """Whether the engine orders ties by key, also across the limit."""


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """Some of the points in the order of their ids, and the id the next page starts at."""

    points: list[Point]
    next_id: UUID | None


@dataclass(frozen=True, slots=True)
class Changes:
    """The ids written after a change number, and the number that a copy has reached once it has read them."""

    number: int
    ids: frozenset[UUID]
    more: bool = False
    """Whether there are more changes than these. They come after `number`."""


class ChangesForgottenError(Exception):
    """The feed no longer has all changes after that number: the copy must be loaded again."""


class Points(Protocol):
    """One set of points. Every write of one or more new versions gets the next change number."""

    async def upsert(self, points: Sequence[Point]) -> int:
        """Writes the points whose stored version is older or absent; returns how many were newer in the store.

        Ids are distinct, vectors and names valid.
        """

    async def read(self, ids: Collection[UUID], vectors: Collection[str] = ()) -> list[Point]:
        """The points that exist, including hidden ones, in any order, with the named vectors and bags of words."""

    async def nearest(self, queries: Sequence[Nearest]) -> Answers:
        """The best points of each query, best first, ties in any order, without their bags of words."""

    async def page(
        self, start: UUID | None, limit: int, conditions: tuple[Condition, ...] = (), vectors: Collection[str] = ()
    ) -> Page:
        """Points from an id on, in the order of ids, with the named vectors and bags of words."""

    async def count(self, conditions: tuple[Condition, ...] = ()) -> int: ...

    async def change_number(self) -> int:
        """The number of the last write. ChangesForgottenError if the feed was replaced since the last call."""

    async def changes(self, after: int) -> Changes:
        """The writes of all processes after a number; copies in memory follow them.

        ChangesForgottenError if the feed no longer has all of them.
        """


class Store(Protocol):
    """Views and their points. Within a process, views are created, served and dropped by one caller at a time."""

    engine: str

    async def open(self) -> None:
        """Opens the store; raises if it has another owner or a newer schema."""

    async def close(self) -> None: ...

    async def check(self) -> None:
        """Raises when the store could not answer now."""

    async def registry(self, *, fresh: bool = False) -> Registry:
        """The views. What other processes changed within the last second may be missing unless `fresh` is set."""

    async def create(self, view: View) -> bool:
        """Creates a view. False if another process has created the same one meanwhile."""

    async def serve(self, name: str) -> None: ...

    async def drop(self, name: str) -> None:
        """Drops a view, and what a crash has left of one. Does nothing if there is none."""

    def points(self, view: View, kind: Kind) -> Points: ...

    async def disk_bytes(self, view: View) -> int: ...
