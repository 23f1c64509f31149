"""The event rules in memory: the newest revision wins, whatever the order and the batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from citewell.profiler.ledger.facts import ContextText, Facts, read_facts
from citewell.profiler.ledger.rules import Batch, Contribution, Edge, Kind, PaperState, SourcedEvent
from citewell.scholarly.contexts import MaskedContext
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.outcomes import Outcome
from citewell.scholarly.papers import ExternalId
from citewell.scholarly.publications import Event, Publication, Retraction
from tests.ledger_world import LedgerModel


@dataclass
class MemoryLedger:
    """A `Reader` over the results of earlier batches."""

    states: dict[str, PaperState] = field(default_factory=dict)
    bodies: dict[str, Publication] = field(default_factory=dict)
    lines: dict[str, dict[str, Edge]] = field(default_factory=dict)
    claimed: set[tuple[str, str]] = field(default_factory=set)
    total: Counter[tuple[str, Contribution]] = field(default_factory=Counter)

    def papers(self, ids: Iterable[str]) -> Mapping[str, PaperState]:
        return {key: self.states[key] for key in ids if key in self.states}

    def edges(self, citing: Iterable[str]) -> Mapping[str, Mapping[str, Edge]]:
        return {key: self.lines[key] for key in citing if key in self.lines}

    def facts(self, paper_id: str) -> Facts:
        return read_facts(self.bodies[paper_id])[0]

    def claims(self, aliases: Iterable[str]) -> Mapping[str, frozenset[str]]:
        return {name: frozenset(paper for alias, paper in self.claimed if alias == name) for name in aliases}

    def citing(self, cited: str) -> Iterable[str]:
        return [key for key, edges in self.lines.items() if cited in edges and edges[cited].contribution]

    def claims_may_change(self) -> None: ...

    def apply(self, bodies: Iterable[Publication | Retraction]) -> list[Outcome]:
        batch = Batch(self)
        told = [SourcedEvent(Event("event", body)) for body in bodies]
        batch.prefetch(told)
        outcomes = [batch.apply(each).outcome for each in told]
        for key in batch.changed_papers:
            assert batch.papers[key].version > self.states.get(key, PaperState(key)).version
            self.states[key] = batch.papers[key]
        self.bodies |= batch.bodies
        for citing, cited in batch.changed_edges:
            self.lines.setdefault(citing, {})[cited] = batch.edges[citing][cited]
        self.claimed = (self.claimed | batch.claimed) - batch.disclaimed
        self.total.update(batch.net)
        for mark in batch.marks:
            assert self.states[mark.object_id].known
            assert mark.kind is Kind.PAPER or self.lines[mark.object_id]
        return outcomes


@st.composite
def bodies(draw: st.DrawFn) -> list[Publication | Retraction]:
    """Events without conflicts: a paper's revision has one content."""
    told: dict[tuple[str, int], Publication | Retraction] = {}
    for _ in range(draw(st.integers(1, 12))):
        paper, revision = draw(st.sampled_from("abcd")), draw(st.integers(1, 5))
        cited = draw(st.lists(st.sampled_from([*"abcd", "stub", "doi:a", "doi:b"]), max_size=4))
        also = draw(st.sets(st.sampled_from("ab")))
        publication = Publication(
            paper,
            revision,
            f"Title {draw(st.integers(0, 1))}",
            published=PartialDate(draw(st.sampled_from([0, 2019, 2020]))),
            external_ids=tuple(ExternalId("doi", name) for name in sorted(also)),
            masked_contexts=tuple(MaskedContext(f"TARGETCIT {n}", to) for n, to in enumerate(cited)),
        )
        retracted = draw(st.integers(0, 4)) == 0
        told.setdefault((paper, revision), Retraction(paper, revision) if retracted else publication)
    return list(told.values())


@given(bodies(), st.randoms(use_true_random=False), st.integers(1, 5))
def test_any_order_in_any_batches_ends_in_the_models_state(
    told: list[Publication | Retraction], random: Random, size: int
) -> None:
    model = LedgerModel()
    random.shuffle(told)
    told = told + told[: len(told) // 2]  # some come twice
    ledger = MemoryLedger()
    for at in range(0, len(told), size):
        some = told[at : at + size]
        assert ledger.apply(some) == [model.deliver(Event("event", body)) for body in some]
    published = model.published()
    expected: Counter[tuple[str, Contribution]] = Counter()
    for (citing, cited), texts in model.citations().items():
        facts = read_facts(published[citing])[0]
        keys = tuple(sorted(ContextText(text).key for text in texts))
        expected[cited, Contribution(facts.published.year, facts.text, keys)] += 1
    assert {key: times for key, times in ledger.total.items() if times} == expected
    assert {
        (citing, cited) for citing, edges in ledger.lines.items() for cited in edges if edges[cited].contribution
    } == (model.citations().keys())


@given(bodies())
def test_the_same_events_again_change_nothing(told: list[Publication | Retraction]) -> None:
    ledger = MemoryLedger()
    ledger.apply(told)
    before = dict(ledger.states), dict(ledger.total)
    assert not set(ledger.apply(told)) & {Outcome.APPLIED, Outcome.DEAD}
    assert (ledger.states, ledger.total) == before


def test_only_what_changed_is_marked() -> None:
    ledger = MemoryLedger()
    contexts = (MaskedContext("TARGETCIT", "a"), MaskedContext("TARGETCIT", "b"))
    ledger.apply(
        [Publication("a", 1, "A"), Publication("b", 1, "B"), Publication("c", 1, "C", masked_contexts=contexts)]
    )
    batch = Batch(ledger)
    changed = (MaskedContext("TARGETCIT", "a"), MaskedContext("unlike TARGETCIT", "b"))
    batch.apply(SourcedEvent(Event("event", Publication("c", 2, "C", masked_contexts=changed))))
    assert {(mark.kind, mark.object_id) for mark in batch.marks} == {
        (Kind.PAPER, "c"),
        (Kind.SPANS, "c"),
        (Kind.PAPER, "b"),
    }
