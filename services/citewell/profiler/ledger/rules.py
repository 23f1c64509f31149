"""The rules by which events change papers and citations, computed in memory without SQL or an encoder.

A `Batch` reads the rows that its events touch through a `Reader`, applies the events one after another, and collects
the rows to write. Changes to the profile sums are collected as signed counts of contributions: an addition and its
removal in the same batch cancel out before anything is computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Protocol

from citewell.profiler.ledger.facts import Facts, Text, TextKey, read_facts
from citewell.scholarly.dates import UNKNOWN_DATE
from citewell.scholarly.outcomes import Outcome
from citewell.scholarly.positions import LogPosition
from citewell.scholarly.publications import Event, InvalidPublication, Publication, Retraction, validate


class Kind(StrEnum):
    """The kinds of objects that the index holds of a paper: its own point, and the spans in which it cites others."""

    PAPER = "paper"
    SPANS = "spans"


NO_FACTS = Facts(UNKNOWN_DATE, b"", {}, frozenset())


@dataclass(frozen=True, slots=True)
class Result:
    """The result of applying one event."""

    outcome: Outcome
    event_id: str
    position: LogPosition | None = None
    reason: str = ""
    message: str = ""
    effect: str = ""
    """The id of an event. This result's event is searchable when that event's marks are deleted. It is the event's own
    id if it was applied, else the id of the last event applied to the paper."""


@dataclass(frozen=True, slots=True)
class PaperState:
    """A row of the ledger. Revision 0 means a stub: a paper that is cited, but not published yet."""

    id: str
    revision: int = 0
    content_hash: str = ""
    retracted: bool = False
    version: int = 0
    body_revision: int = 0
    """Revision of the newest publication; 0 if only a retraction is known."""
    text: TextKey = b""
    last_event: str = ""

    @property
    def known(self) -> bool:
        """Whether the paper was ever published. Only then does it have a text and a point in the index."""
        return self.body_revision > 0


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one citing paper adds to the sums of a cited one. The texts stand for their vectors s_ji and v_j."""

    year: int
    text: TextKey
    contexts: tuple[TextKey, ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """One (citing, cited) pair. When the citation is removed, the edge stays without a contribution."""

    contribution: Contribution | None
    revision: int
    day: int
    """The last day that the citing paper's date may mean, 0 = unknown. As-of dates in the same year compare with it."""
    gone: frozenset[TextKey] = frozenset()
    """Contexts of earlier revisions. Their spans stay in the index as tombstones."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An object that must be projected at this version or a newer one."""

    kind: Kind
    object_id: str
    version: int
    event_id: str
    bulk: bool = False
    """Whether a load made this mark. Marks of single events are projected first."""


class Reader(Protocol):
    """What the rules read from the ledger."""

    def papers(self, ids: Iterable[str]) -> Mapping[str, PaperState]:
        """The rows that exist."""

    def edges(self, citing: Iterable[str]) -> Mapping[str, Mapping[str, Edge]]:
        """All edges of each citing paper, including removed ones: citing → cited → edge."""

    def facts(self, paper_id: str) -> Facts:
        """The facts of the newest publication of a known paper."""

    def claims(self, aliases: Iterable[str]) -> Mapping[str, frozenset[str]]:
        """Alias → the papers that list it among their external ids."""

    def citing(self, cited: str) -> Iterable[str]:
        """The papers with a present edge to this one. Needed only when an id starts to mean another paper."""

    def claims_may_change(self) -> None:
        """Called before an id may start to mean another paper; raises where this transaction does not allow it."""


@dataclass(frozen=True)
class SourcedEvent:
    """An event and its position in the log. An event loaded from a file has none."""

    event: Event
    position: LogPosition | None = None

    @property
    def body(self) -> Publication | Retraction:
        return self.event.body

    @cached_property
    def problem(self) -> InvalidPublication | None:
        """Why the event can never be applied; None if it can."""
        try:
            validate(self.body)
        except InvalidPublication as error:
            return error
        return None

    @cached_property
    def content_hash(self) -> str:
        return self.body.content_hash()

    @property
    def facts(self) -> Facts:
        return self._told[0]

    @property
    def texts(self) -> dict[TextKey, Text]:
        """All texts of the event that are encoded."""
        return self._told[1]

    @cached_property
    def _told(self) -> tuple[Facts, dict[TextKey, Text]]:
        if isinstance(self.body, Retraction):
            return NO_FACTS, {}
        return read_facts(self.body)

    def dead(self, reason: str, error: Exception) -> Result:
        """The result of an event that can never be applied."""
        return Result(Outcome.DEAD, self.event.event_id, self.position, reason, str(error))


def outcome_of(state: PaperState, told: SourcedEvent) -> Outcome:
    """Whether the event is new, repeated or superseded. The newest valid revision wins, in any order of arrival."""
    if told.body.revision < state.revision:
        return Outcome.SUPERSEDED
    if told.body.revision > state.revision:
        return Outcome.APPLIED
    if told.content_hash == state.content_hash:
        return Outcome.DUPLICATE
    raise RevisionConflict(state.id, told.body.revision)


class RevisionConflict(Exception):
    """This revision of the paper was published before, with other content."""

    def __init__(self, paper_id: str, revision: int) -> None:
        super().__init__(
            f"revision {revision} of {paper_id!r} was published before with other content; "
            f"publish the change as revision {revision + 1}"
        )


def contributions(facts: Facts, resolve: Mapping[str, str]) -> dict[str, Contribution]:
    """What a paper adds to each paper that it cites. Several ids of one cited paper are merged."""
    merged: dict[str, set[TextKey]] = {}
    for source, keys in facts.contexts.items():
        merged.setdefault(resolve[source], set()).update(keys)
    year = facts.published.year
    return {cited: Contribution(year, facts.text, tuple(sorted(keys))) for cited, keys in merged.items()}


@dataclass
class Batch:
    """Events applied in order, in memory."""

    reader: Reader
    dead: frozenset[str] = frozenset()
    """Ids of the batch's events that were recorded as dead before."""
    papers: dict[str, PaperState] = field(default_factory=dict)
    """All papers read so far, in their state after the events applied so far."""
    changed_papers: set[str] = field(default_factory=set)
    bodies: dict[str, Publication] = field(default_factory=dict)
    """Publications of this batch that became the newest ones of their papers."""
    edges: dict[str, dict[str, Edge]] = field(default_factory=dict)
    changed_edges: set[tuple[str, str]] = field(default_factory=set)
    claimed: set[tuple[str, str]] = field(default_factory=set)
    """(alias, paper) pairs to add."""
    disclaimed: set[tuple[str, str]] = field(default_factory=set)
    """(alias, paper) pairs to remove."""
    net: Counter[tuple[str, Contribution]] = field(default_factory=Counter)
    """(cited, contribution) → how often it is added. Negative numbers count removals."""
    marks: list[Mark] = field(default_factory=list)
    _claims: dict[str, frozenset[str]] = field(default_factory=dict)
    _facts: dict[str, Facts] = field(default_factory=dict)

    def prefetch(self, events: Sequence[SourcedEvent]) -> None:
        """Reads all rows that these events need with a few queries."""
        events = [told for told in events if not told.problem]  # an invalid event's facts may not be readable
        ids = {told.body.paper_id for told in events}
        sources = {source for told in events for source in told.facts.contexts}
        edges = self.reader.edges(ids)
        self.edges = {paper_id: dict(edges.get(paper_id, {})) for paper_id in ids}
        claims = self._claimed_by(ids.union(sources, *(told.facts.aliases for told in events)))
        touched = ids.union(sources, *edges.values(), *claims.values())
        papers = self.reader.papers(touched)
        self.papers = {paper_id: papers.get(paper_id) or PaperState(paper_id) for paper_id in touched}

    def apply(self, told: SourcedEvent) -> Result:
        """Applies one event. The result is DEAD with a reason if the event can never be applied."""
        if told.problem:
            return told.dead(f"INVALID_{told.problem.field.split('[')[0].upper()}", told.problem)
        state = self._paper(told.body.paper_id)
        try:
            outcome = outcome_of(state, told)
        except RevisionConflict as error:
            return told.dead("REVISION_CONFLICT", error)
        effect = state.last_event
        if outcome is Outcome.APPLIED:
            self._accept(state, told)
            effect = told.event.event_id
        elif (
            isinstance(told.body, Publication)
            and state.retracted
            and told.body.revision > state.body_revision
            and told.event.event_id not in self.dead
        ):
            # An older revision that arrives after the retraction is superseded. Its text is kept all the same, because
            # it is the newest text, and the same events in another order must end in the same state. Exception: an
            # event recorded as dead contradicted an earlier revision, so repeating it must have no effect.
            self._accept_body(state, told, told.body)
            effect = told.event.event_id  # it made marks of its own
        return Result(outcome, told.event.event_id, told.position, effect=effect)

    def _accept(self, state: PaperState, told: SourcedEvent) -> None:
        self.papers[state.id] = replace(
            state,
            revision=told.body.revision,
            content_hash=told.content_hash,
            retracted=isinstance(told.body, Retraction),
            last_event=told.event.event_id,
        )
        if isinstance(told.body, Publication):
            self._accept_body(self.papers[state.id], told, told.body)
        else:
            self._derive([state.id], told)

    def _accept_body(self, state: PaperState, told: SourcedEvent, body: Publication) -> None:
        facts = told.facts
        before = self._facts_of(state).aliases if state.known else frozenset()
        meaning = {*(facts.aliases ^ before), *(() if state.known else (state.id,))}
        if facts.aliases != before or (not state.known and self._claimed_by([state.id])[state.id]):
            self.reader.claims_may_change()
        resolved = self._resolve(meaning)
        for name in facts.aliases - before:
            self._claim(name, self._claims[name] | {state.id})
        for name in before - facts.aliases:
            self._claim(name, self._claims[name] - {state.id})
        self.papers[state.id] = replace(state, body_revision=body.revision, text=facts.text)
        self.bodies[state.id] = body
        self._facts[state.id] = facts
        moved = {name: target for name, target in resolved.items() if self._resolve([name])[name] != target}
        citing = {
            other
            for name, target in moved.items()
            for other in self._citing(target)
            if name in self._facts_of(self._paper(other)).contexts
        }
        self._derive(sorted({state.id, *citing}), told)

    def _derive(self, citing: list[str], told: SourcedEvent) -> None:
        """Updates the edges of these papers from their facts, and marks every object that changes."""
        touched: dict[str, set[Kind]] = {told.body.paper_id: {Kind.PAPER}}
        for paper_id in citing:
            for cited in self._derive_edges(paper_id):
                touched.setdefault(cited, set()).add(Kind.PAPER)
            # Spans store the paper's revision and are hidden with it, so they are marked even if no edge changed. The
            # paper's own point is marked too, so that its version in the index becomes that of the ledger.
            if self._edges(paper_id):
                touched.setdefault(paper_id, {Kind.PAPER}).add(Kind.SPANS)
        for paper_id in sorted(touched):
            state = replace(self._paper(paper_id), version=self._paper(paper_id).version + 1)
            self.papers[paper_id] = state
            self.changed_papers.add(paper_id)
            if state.known:
                self.marks += [
                    Mark(kind, paper_id, state.version, told.event.event_id, bulk=told.position is None)
                    for kind in sorted(touched[paper_id])
                ]

    def _derive_edges(self, citing: str) -> Iterable[str]:
        """Updates one paper's edges. Yields the cited papers whose sums change."""
        state, edges = self._paper(citing), self._edges(citing)
        new: dict[str, Contribution] = {}
        day = 0
        if state.known and not state.retracted:
            facts = self._facts_of(state)
            day = facts.published.last_day()
            new = contributions(facts, self._resolve(facts.contexts))
        for cited in sorted({*edges, *new}):
            old, now = edges.get(cited), new.get(cited)
            before = old.contribution if old else None
            if before == now and (now is None or (old and old.day == day)):
                continue
            had = (old.gone if old else frozenset()) | frozenset(before.contexts if before else ())
            edges[cited] = Edge(now, state.revision, day if now else 0, had - frozenset(now.contexts if now else ()))
            self.changed_edges.add((citing, cited))
            if before == now:
                continue
            if before:
                self.net[cited, before] -= 1
            if now:
                self.net[cited, now] += 1
            yield cited

    def _resolve(self, names: Iterable[str]) -> dict[str, str]:
        """The paper that each id means now: the published paper of that id, else the paper that has it as an alias."""
        return {
            name: min(papers) if papers and not self._paper(name).known else name
            for name, papers in self._claimed_by(names).items()
        }

    def _claimed_by(self, names: Iterable[str]) -> dict[str, frozenset[str]]:
        """The papers that claim each id as an alias."""
        names = set(names)
        if unknown := names - self._claims.keys():
            found = self.reader.claims(unknown)
            self._claims.update({name: found.get(name, frozenset()) for name in unknown})
        return {name: self._claims[name] for name in names}

    def _claim(self, name: str, by: frozenset[str]) -> None:
        for paper_id in by - self._claims[name]:
            self.disclaimed.discard((name, paper_id))
            self.claimed.add((name, paper_id))
        for paper_id in self._claims[name] - by:
            self.claimed.discard((name, paper_id))
            self.disclaimed.add((name, paper_id))
        self._claims[name] = by

    def _citing(self, cited: str) -> set[str]:
        """The citing papers, as in the ledger after this batch's changes."""
        return {
            citing
            for citing in {*self.reader.citing(cited), *(citing for citing, to in self.changed_edges if to == cited)}
            if (edge := self._edges(citing).get(cited)) and edge.contribution
        }

    def _paper(self, paper_id: str) -> PaperState:
        if paper_id not in self.papers:
            self.papers[paper_id] = self.reader.papers([paper_id]).get(paper_id) or PaperState(paper_id)
        return self.papers[paper_id]

    def _edges(self, citing: str) -> dict[str, Edge]:
        if citing not in self.edges:
            self.edges[citing] = dict(self.reader.edges([citing]).get(citing, {}))
        return self.edges[citing]

    def _facts_of(self, state: PaperState) -> Facts:
        if state.id not in self._facts:
            self._facts[state.id] = self.reader.facts(state.id)
        return self._facts[state.id]
