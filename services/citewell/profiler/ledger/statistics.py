"""Word statistics of a view: document frequencies of terms, and the mean length of papers.

A background scan over all papers computes them, and repeats when the number of papers or citations has drifted. They
have a version, which answers name, so that a ranking can be reproduced. As-of queries use document frequencies by year
of publication. Those count the papers' own texts only, so later publications do not change the weights.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.engine import Connection

from citewell.profiler.ledger import schema
from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.said_terms import COUNT, read_said_terms
from citewell.profiler.ledger.text_terms import TERM, read_lexicon, read_text_terms
from citewell.profiler.ledger.views import read_views
from citewell.profiler.lexical import NO_COUNTS, BagRules, Counts, Ids, added
from citewell.scholarly.dates import PartialDate
from citewell.types.v1 import publication_pb2

ALL_WORDS = -1
PAPERS_SCANNED = 1000

# Drift of 10 % changes an idf by about 0.1, against a range of 0 to 11.
DRIFT = 0.1
# With fewer papers, any change triggers a new scan: a scan is cheap, and each paper changes the statistics noticeably.
TINY = 1000


@dataclass(frozen=True, slots=True)
class Frequencies:
    """The document frequencies of the terms in a set of papers."""

    papers: int = 0
    length: float = 0.0
    """The sum of the lengths of these papers."""
    terms: Counts = NO_COUNTS


@dataclass(frozen=True)
class Statistics:
    """Statistics by which the words of a query are weighted."""

    version: str
    frequencies: Frequencies
    citations: int = 0
    by_year: dict[int, Frequencies] = field(default_factory=dict)
    """Frequencies in the papers' own texts, by year of publication. Papers without a year are left out."""

    @property
    def papers(self) -> int:
        return self.frequencies.papers

    @property
    def mean_length(self) -> float:
        """The mean length of a paper; 0 if there are no papers."""
        return self.frequencies.length / max(self.papers, 1)

    def idf(self, ids: Ids) -> NDArray[np.float64]:
        """The inverse document frequency of each term. All are equal if there are no papers."""
        terms = self.frequencies.terms
        found = np.zeros(len(ids), np.float64)
        if len(terms):
            at = np.minimum(np.searchsorted(terms.ids, ids), len(terms) - 1)
            known = terms.ids[at] == ids
            found[known] = terms.counts[at[known]]
        return np.log(1 + (self.papers - found + 0.5) / (found + 0.5))

    def as_of(self, date: PartialDate) -> Statistics:
        """The statistics of papers from earlier years; of all papers if the date is unknown."""
        if not date.known:
            return self
        years = [year for year in sorted(self.by_year) if 0 < year < date.year]
        last = years[-1] if years else 0  # by which they are kept: callers may ask for any year, papers have few
        if last not in self._before:
            earlier = [self.by_year[year] for year in years]
            self._before[last] = Frequencies(
                sum(of_year.papers for of_year in earlier),
                sum(of_year.length for of_year in earlier),
                added([of_year.terms for of_year in earlier]),
            )
        return Statistics(f"{self.version} before {date.year}", self._before[last])

    @cached_property
    def _before(self) -> dict[int, Frequencies]:
        return {}


NO_STATISTICS = Statistics("", Frequencies())


def read_version(connection: Connection, rules: BagRules) -> str:
    """The version of the statistics for views of these rules. Empty if there are none yet."""
    table = schema.statistics
    query = sa.select(table.c.version).where(table.c.rules == rules.key, table.c.year == ALL_WORDS)
    return connection.scalar(query) or ""


def read_statistics(connection: Connection, rules: BagRules) -> Statistics:
    """The statistics for views of these rules."""
    table = schema.statistics
    rows = {row.year: row for row in connection.execute(sa.select(table).where(table.c.rules == rules.key))}
    if ALL_WORDS not in rows:
        return NO_STATISTICS
    of_all = rows.pop(ALL_WORDS)
    by_year = {year: _frequencies(row) for year, row in rows.items()}
    return Statistics(of_all.version, _frequencies(of_all), of_all.citations, by_year)


Totals = tuple[int, int]
"""The number of papers that are not hidden, and the number of citations."""


class Settling:
    """Tells when nothing was published for a while: statistics then follow even a small drift."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds, self._clock = seconds, clock
        self._totals: Totals | None = None
        self._since = 0.0

    def settled(self, totals: Totals) -> bool:
        """Whether these have been the totals for so long."""
        if totals != self._totals:
            self._totals, self._since = totals, self._clock()
        return self._clock() - self._since >= self._seconds


def refresh_step(database: Database, settling: Settling | None = None) -> bool:
    """Computes statistics that are missing or have drifted. Returns whether there were any; the check is two counts."""
    with database.reading() as connection:
        lexicon = read_lexicon(connection)
        if lexicon is None or lexicon.state != "READY":
            return False
        rules = {view.words for view in read_views(connection) if view.projected and view.words}
        totals = _totals(connection)
        table = schema.statistics
        made = {
            row.rules: (row.papers, row.citations)
            for row in connection.execute(
                sa.select(table.c.rules, table.c.papers, table.c.citations).where(table.c.year == ALL_WORDS)
            )
        }
    settled = settling is not None and settling.settled(totals)
    drifted = {each.key: each for each in rules if _has_drifted(made.get(each.key), totals, settled=settled)}
    for key in sorted(drifted):
        statistics = scan(database, drifted[key], totals[1])
        _store(database, drifted[key], statistics)
    return bool(drifted)


def scan(database: Database, rules: BagRules, citations: int) -> Statistics:
    """The statistics of all papers that are not hidden, read in pieces in the order of ids."""
    of_all, by_year = _Tally(), defaultdict[int, _Tally](_Tally)
    after = ""
    while True:
        with database.reading() as connection:
            papers = _shown_after(connection, after)
            if not papers:
                break
            _add(connection, rules, papers, of_all, by_year)
            after = papers[-1].id
    total, years = of_all.total(), {year: tally.total() for year, tally in by_year.items()}
    return Statistics(_version(rules, total, years), total, citations, years)


class _Tally:
    """Document frequencies, counted in pieces. Pieces are merged into the sum once they are larger than it."""

    def __init__(self) -> None:
        self._papers, self._length = 0, 0.0
        self._sum, self._pending, self._waiting = NO_COUNTS, list[Counts](), 0

    def add(self, papers: int, length: float, ids: Ids) -> None:
        """Adds papers with these term ids. An id occurs once for each paper that has the term."""
        self._papers += papers
        self._length += length
        terms, counts = np.unique(ids, return_counts=True)
        self._pending.append(Counts(terms, counts.astype(np.int64)))
        self._waiting += len(terms)
        if self._waiting > len(self._sum):
            self._settle()

    def total(self) -> Frequencies:
        self._settle()
        return Frequencies(self._papers, self._length, self._sum)

    def _settle(self) -> None:
        self._sum = added([self._sum, *self._pending])
        self._pending, self._waiting = [], 0


def _add(
    connection: Connection,
    rules: BagRules,
    papers: Sequence[sa.Row[Any]],
    of_all: _Tally,
    by_year: dict[int, _Tally],
) -> None:
    """Adds a piece to the tallies."""
    fields = rules.fields
    own = read_text_terms(connection, (paper.text_key for paper in papers))
    said = read_said_terms(connection, (paper.id for paper in papers)) if fields.contexts else {}
    found: list[Ids] = []
    lengths: list[float] = []
    years: defaultdict[int, list[int]] = defaultdict(list)
    own_ids: list[Ids] = []
    own_lengths: list[float] = []
    for number, paper in enumerate(papers):
        text, others = own[paper.text_key], said.get(paper.id, NO_COUNTS)
        values = fields.title * text.title + fields.abstract * text.body
        own_ids.append(text.ids[values > 0])
        own_lengths.append(float(values.sum()))
        found.append(np.union1d(own_ids[-1], others.ids) if len(others) else own_ids[-1])
        lengths.append(own_lengths[-1] + fields.contexts * float(others.counts.sum()))
        years[publication_pb2.Publication.FromString(paper.publication).published.year].append(number)
    of_all.add(len(papers), sum(lengths), np.concatenate(found))
    for year, numbers in years.items():
        if year:
            by_year[year].add(
                len(numbers),
                sum(own_lengths[number] for number in numbers),
                np.concatenate([own_ids[number] for number in numbers]),
            )


def _shown_after(connection: Connection, paper_id: str) -> Sequence[Any]:
    papers, bodies = schema.papers, schema.bodies
    query = (
        sa.select(papers.c.id, papers.c.text_key, bodies.c.publication)
        .join_from(papers, bodies, papers.c.id == bodies.c.paper_id)
        .where(papers.c.id > paper_id, papers.c.body_revision > 0, sa.not_(papers.c.retracted))
        .order_by(papers.c.id)
        .limit(PAPERS_SCANNED)
    )
    return connection.execute(query).all()


def _totals(connection: Connection) -> Totals:
    papers, edges = schema.papers, schema.edges
    shown = sa.select(sa.func.count()).where(papers.c.body_revision > 0, sa.not_(papers.c.retracted))
    present = sa.select(sa.func.count()).where(edges.c.present)
    return connection.scalar(shown) or 0, connection.scalar(present) or 0


def _has_drifted(then: Totals | None, now: Totals, *, settled: bool) -> bool:
    if then is None or settled or now[0] <= TINY:
        return then != now
    return any(abs(new - old) > DRIFT * old for old, new in zip(then, now, strict=True))


def _version(rules: BagRules, total: Frequencies, by_year: dict[int, Frequencies]) -> str:
    """A hash of the statistics."""
    digest = hashlib.sha256(rules.key.encode())
    for year, each in [(ALL_WORDS, total), *sorted(by_year.items())]:
        digest.update(f"{year} {each.papers} {each.length!r}".encode())
        digest.update(each.terms.ids.astype(TERM).tobytes() + each.terms.counts.astype(COUNT).tobytes())
    return digest.hexdigest()[:16]


def _store(database: Database, rules: BagRules, statistics: Statistics) -> None:
    table = schema.statistics
    rows = [
        {
            "rules": rules.key,
            "year": year,
            "version": statistics.version,
            "papers": each.papers,
            "citations": statistics.citations if year == ALL_WORDS else 0,
            "length": each.length,
            "terms": each.terms.ids.astype(TERM).tobytes(),
            "frequencies": each.terms.counts.astype(COUNT).tobytes(),
        }
        for year, each in [(ALL_WORDS, statistics.frequencies), *sorted(statistics.by_year.items())]
    ]
    with database.writing(alone=True) as connection:
        used = [view.form.words.key for view in read_views(connection) if view.form.words]
        connection.execute(sa.delete(table).where(sa.or_(table.c.rules == rules.key, table.c.rules.not_in(used))))
        database.insert_missing(connection, table, rows)


def _frequencies(row: sa.Row[tuple[object, ...]]) -> Frequencies:
    counts = np.frombuffer(row.frequencies, COUNT).astype(np.int64)
    return Frequencies(row.papers, row.length, Counts(np.frombuffer(row.terms, TERM), counts))
