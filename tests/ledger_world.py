"""Test doubles around a ledger: a fast encoder, an index in memory, and a reference model of the ledger.

The model is written without the ledger's code. It shares only the definitions of a publication and of a word.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from math import floor

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from citewell.profiler.index_views import Holdings, IndexWriter
from citewell.profiler.ledger import schema
from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.points import PaperPoint, SpanPoint
from citewell.profiler.ledger.views import View
from citewell.runtime.errors import FailedPrecondition, NotFound, Unavailable
from citewell.scholarly.contexts import normalise
from citewell.scholarly.publications import Event, InvalidPublication, Publication, Retraction, validate
from citewell.scholarly.words import count_terms

Sums = dict[tuple[str, int], tuple[int, tuple[int, ...], tuple[int, ...]]]
"""(cited, citing year, or -1 for the total of several years) → count, Σs, Σv as Python integers."""


Said = dict[tuple[str, int], dict[int, int]]
"""(cited, citing year, or -1 for all years) → term → count."""
EVERY_YEAR = -1


class HashEncoder:
    """Random vectors seeded by the hash of the text: different for any two texts, the same on every machine."""

    max_tokens = 256
    runtime = "hash"

    def __init__(self, name: str = "hash", dimension: int = 6) -> None:
        self.model_id, self.dimension = name, dimension
        self.model_hash = self._seed = f"{name}-{dimension}"
        self.former_hashes = frozenset[str]()
        self.encoded: Counter[str] = Counter()

    def paper_text(self, title: str, abstract: str) -> str:
        return f"{normalise(title)} | {normalise(abstract)}"

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.encoded.update(texts)
        return np.stack([self.vector(text) for text in texts])

    def vector(self, text: str) -> NDArray[np.float32]:
        seed = hashlib.sha256(f"{self._seed} {text}".encode()).digest()
        return np.random.default_rng(list(seed)).standard_normal(self.dimension).astype(np.float32)

    def fixed(self, text: str) -> tuple[int, ...]:
        """The vector in fixed point with 24 binary digits, rounded half to even."""
        return tuple(round(Fraction(float(value)) * 2**24) for value in self.vector(text))


class MemoryIndex:
    """An `IndexWriter` that keeps points in dictionaries. It follows the version rules of the real stores."""

    def __init__(self) -> None:
        self.views: dict[str, View] = {}
        self.papers: dict[str, dict[str, PaperPoint]] = {}
        self.spans: dict[str, dict[str, SpanPoint]] = {}
        self.serving = ""
        self.changes = 0

    def lose_everything(self) -> None:
        """Deletes everything, as the loss of the index's volume would."""
        self.__init__()  # type: ignore[misc]

    async def holdings(self) -> Holdings:
        papers, spans = self.papers.get(self.serving, {}), self.spans.get(self.serving, {})
        visible = sum(not span.hidden for span in spans.values())
        held = {name: len(self.papers[name]) for name in self.views}
        return Holdings(held, self.serving, len(papers), visible, self.changes)

    async def create_view(self, view: View) -> bool:
        created = view.name not in self.views
        there = self.views.setdefault(view.name, view)
        if any(getattr(there, each) != getattr(view, each) for each in ("epoch", "weights", "form")) or (
            there.model.hash != view.model.hash
        ):
            raise FailedPrecondition("the view is there with other properties")
        self.papers.setdefault(view.name, {})
        self.spans.setdefault(view.name, {})
        return created

    async def upsert(self, view: View, papers: Sequence[PaperPoint], spans: Sequence[SpanPoint]) -> None:
        if view.name not in self.views:
            raise NotFound(f"no view {view.name!r}")
        if self.views[view.name].epoch != view.epoch:
            raise FailedPrecondition("another epoch")
        self.changes += 1
        for paper in papers:
            assert np.isfinite(paper.profile).all()
            stored = self.papers[view.name].get(paper.paper.id)
            if stored is None or stored.version < paper.version:
                self.papers[view.name][paper.paper.id] = paper
        for span in spans:
            there = self.spans[view.name].get(span.key)
            if there is None or there.version < span.version:
                self.spans[view.name][span.key] = span

    async def serve_view(self, name: str) -> None:
        if name not in self.views:
            raise NotFound(f"no view {name!r}")
        self.serving = name

    async def drop_view(self, name: str) -> None:
        if name == self.serving:
            raise FailedPrecondition("the view is served")
        if self.views.pop(name, None) is None:
            raise NotFound(f"no view {name!r}")
        del self.papers[name], self.spans[name]

    async def read_points(
        self, view: str, paper_ids: Sequence[str], span_keys: Sequence[str]
    ) -> tuple[list[PaperPoint], list[SpanPoint]]:
        if view not in self.views:
            raise NotFound(f"no view {view!r}")
        papers, spans = self.papers[view], self.spans[view]
        return [papers[key] for key in paper_ids if key in papers], [spans[key] for key in span_keys if key in spans]


class LosingIndex:
    """Wraps an index. With `lose_answers`, writes succeed but their answers are lost."""

    def __init__(self, index: IndexWriter) -> None:
        self._index = index
        self.lose_answers = False

    async def holdings(self) -> Holdings:
        return await self._index.holdings()

    async def create_view(self, view: View) -> bool:
        return await self._index.create_view(view)

    async def upsert(self, view: View, papers: Sequence[PaperPoint], spans: Sequence[SpanPoint]) -> None:
        await self._index.upsert(view, papers, spans)
        if self.lose_answers:
            raise Unavailable("the answer was lost")

    async def serve_view(self, name: str) -> None:
        await self._index.serve_view(name)

    async def drop_view(self, name: str) -> None:
        await self._index.drop_view(name)

    async def read_points(
        self, view: str, paper_ids: Sequence[str], span_keys: Sequence[str]
    ) -> tuple[list[PaperPoint], list[SpanPoint]]:
        return await self._index.read_points(view, paper_ids, span_keys)


@dataclass
class ModelPaper:
    """All that was published about one paper."""

    revision: int = 0
    content: str = ""
    retracted: bool = False
    publication: Publication | None = None


@dataclass
class LedgerModel:
    """The reference model. It stores the content of the events and computes everything else from it on demand."""

    papers: dict[str, ModelPaper] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)
    """event id → its first outcome. A later APPLIED overwrites DEAD."""

    def deliver(self, event: Event) -> str:
        """The expected outcome of applying the event. Dead events are recorded by `bury`."""
        body = event.body
        try:
            validate(body)
        except InvalidPublication:
            return "DEAD"
        paper = self.papers.setdefault(body.paper_id, ModelPaper())
        content = body.content_hash()
        if body.revision == paper.revision:
            outcome = "DUPLICATE" if content == paper.content else "DEAD"
        else:
            outcome = "APPLIED" if body.revision > paper.revision else "SUPERSEDED"
        if outcome == "DEAD":
            return outcome
        if outcome == "APPLIED":
            paper.revision, paper.content, paper.retracted = body.revision, content, isinstance(body, Retraction)
        newest = paper.publication.revision if paper.publication else 0
        dead = self.outcomes.get(event.event_id) == "DEAD" and outcome == "SUPERSEDED"
        if isinstance(body, Publication) and body.revision > newest and not dead:
            paper.publication = body
        if outcome == "APPLIED" and self.outcomes.get(event.event_id) == "DEAD":
            self.outcomes[event.event_id] = outcome
        self.outcomes.setdefault(event.event_id, outcome)
        return outcome

    def bury(self, event_id: str) -> None:
        self.outcomes.setdefault(event_id, "DEAD")

    def published(self) -> dict[str, Publication]:
        """The newest publication of every paper, including retracted ones."""
        return {key: paper.publication for key, paper in self.papers.items() if paper.publication}

    def meaning(self, source: str) -> str:
        """The paper that an id in a reference list means."""
        published = self.published()
        if source in published:
            return source
        claimants = [
            key
            for key, publication in published.items()
            if any(f"{other.scheme}:{other.value}" == source for other in publication.external_ids)
        ]
        return min(claimants, default=source)

    def citations(self) -> dict[tuple[str, str], set[str]]:
        """(citing, cited) → the distinct contexts of the citation."""
        found: dict[tuple[str, str], set[str]] = {}
        for citing, publication in self.published().items():
            if not self.papers[citing].retracted:
                for source, contexts in publication.contexts().items():
                    found.setdefault((citing, self.meaning(source)), set()).update(contexts)
        return found

    def sums(self, encoder: HashEncoder) -> Sums:
        """The sums, computed from all citations."""
        published = self.published()
        zero = (0,) * encoder.dimension
        found: Sums = {}
        for (citing, cited), contexts in self.citations().items():
            publication = published[citing]
            content = encoder.fixed(encoder.paper_text(publication.title, publication.abstract))
            vectors = [encoder.fixed(text) for text in contexts]
            mean = tuple(
                floor(Fraction(sum(each), len(vectors)) + Fraction(1, 2)) for each in zip(*vectors, strict=True)
            )
            group = cited, publication.published.year
            count, said, contents = found.get(group, (0, zero, zero))
            found[group] = count + 1, _plus(said, mean or zero), _plus(contents, content)
        return found | _totals(found)

    def profile(self, encoder: HashEncoder, paper_id: str, alpha: float, beta: float) -> NDArray[np.float64]:
        """v̂_i, computed by eq. 3 literally."""
        publication = self.published()[paper_id]
        vector = np.array(encoder.fixed(encoder.paper_text(publication.title, publication.abstract))) / 2**24
        sums = self.sums(encoder)
        groups = [sums[cited, year] for cited, year in sums if cited == paper_id and year != EVERY_YEAR]
        count = sum(group[0] for group in groups)
        for _, said, contents in groups:
            vector = vector + (alpha * np.array(said) + beta * np.array(contents)) / 2**24 / count
        return vector

    def said(self) -> Said:
        """Term counts of the citing contexts, computed from all citations."""
        published = self.published()
        found: defaultdict[tuple[str, int], Counter[int]] = defaultdict(Counter)
        for (citing, cited), contexts in self.citations().items():
            for text in contexts:
                for year in (published[citing].published.year, EVERY_YEAR):
                    found[cited, year].update(count_terms(text))
        return {group: dict(counts) for group, counts in found.items() if counts}

    def bag(self, paper_id: str, title: float, abstract: float, contexts: float) -> dict[int, float]:
        """The weighted count of every term in a paper's public profile."""
        publication, bag = self.published()[paper_id], defaultdict[int, float](float)
        fields = (
            (title, count_terms(publication.title)),
            (abstract, count_terms(publication.abstract)),
            (contexts, self.said().get((paper_id, EVERY_YEAR), {})),
        )
        for weight, counts in fields:
            for term, count in counts.items() if weight else ():
                bag[term] += weight * count
        return dict(bag)

    def in_degree(self, paper_id: str) -> int:
        return sum(cited == paper_id for _, cited in self.citations())


def _totals(sums: Sums) -> Sums:
    """The total of each paper cited in more than one year."""
    totals: Sums = {}
    for cited in {cited for cited, _ in sums}:
        counts, said, contents = zip(
            *(group for (paper_id, _), group in sums.items() if paper_id == cited), strict=True
        )
        if len(counts) > 1:
            totals[cited, EVERY_YEAR] = sum(counts), reduce(_plus, said), reduce(_plus, contents)
    return totals


def _plus(one: Iterable[int], other: Iterable[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def shown_papers(points: Iterable[PaperPoint]) -> dict[str, PaperPoint]:
    return {point.paper.id: point for point in points if not point.hidden}


def shown_spans(points: Iterable[SpanPoint]) -> dict[tuple[str, str, str], SpanPoint]:
    """(citing, cited, text) → span."""
    return {(point.citing_id, point.cited_id, point.text): point for point in points if not point.hidden}


def stored_sums(database: Database, model: str) -> Sums:
    table = schema.year_sums
    with database.reading() as connection:
        return {
            (row.cited, row.year): (
                int(row._mapping["count"]),  # row.count is a method
                tuple(np.frombuffer(row.contexts, "<i8").tolist()),
                tuple(np.frombuffer(row.contents, "<i8").tolist()),
            )
            for row in connection.execute(sa.select(table).where(table.c.model == model))
        }


def check_words(model: LedgerModel, point: PaperPoint, view: View) -> None:
    """Checks that the point's bag of words equals the model's bit for bit."""
    assert view.form.words
    fields = view.form.words.fields
    bag = model.bag(point.paper.id, fields.title, fields.abstract, fields.contexts)
    assert dict(zip(point.terms.ids.tolist(), point.terms.values.tolist(), strict=True)) == bag
    assert point.length == sum(bag.values())


def stored_said(database: Database) -> Said:
    """The sum of the runs of each group."""
    found: defaultdict[tuple[str, int], Counter[int]] = defaultdict(Counter)
    with database.reading() as connection:
        for row in connection.execute(sa.select(schema.said_terms)):
            ids, counts = np.frombuffer(row.terms, "<u4").tolist(), np.frombuffer(row.counts, "<i4").tolist()
            assert len(ids) == row.size > 0
            for term, count in zip(ids, counts, strict=True):
                found[row.cited, row.year][term] += count
    sums = {group: {term: count for term, count in counts.items() if count} for group, counts in found.items()}
    return {group: counts for group, counts in sums.items() if counts}


def dump(database: Database) -> dict[str, list[tuple[object, ...]]]:
    with database.reading() as connection:
        return {
            table.name: sorted(tuple(row) for row in connection.execute(sa.select(table)))
            for table in schema.metadata.sorted_tables
        }
