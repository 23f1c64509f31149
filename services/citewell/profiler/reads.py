"""Reads profiles and scores from the ledger, as of now or as of a date."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.engine import Connection

from citewell.profiler.ledger import schema
from citewell.profiler.ledger.database import Database, select_in
from citewell.profiler.ledger.points import read_bags
from citewell.profiler.ledger.rows import LedgerRows, contribution_of
from citewell.profiler.ledger.rules import Contribution, PaperState
from citewell.profiler.ledger.said_terms import read_said_before, said_by, total_by_paper
from citewell.profiler.ledger.schema import EVERY_YEAR
from citewell.profiler.ledger.sums import YearSums, read_totals, read_vectors, read_years, totals_of, year_sums_of
from citewell.profiler.ledger.views import View, serving_view
from citewell.profiler.profiles import ProfileSums, Vectors, from_fixed, profile, scores, shares
from citewell.runtime.errors import InvalidField, NotFound
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.lexical import NO_TERMS, LexicalQuery, Terms, contributions


@dataclass(frozen=True, slots=True)
class ProfileScore:
    """cosine(v_q, v̂_i), the number of citing papers in v̂_i, and the lexical score."""

    paper_id: str
    score: float
    in_degree: int
    shares: tuple[float, float, float]
    """Shares of content, contexts and citing papers in v_q · v̂_i."""
    lexical: float
    """The lexical score before it is multiplied by its weight."""
    hybrid: float
    matched: Terms
    """Each matching term with what it adds to the lexical score."""


@dataclass(frozen=True, slots=True, eq=False)
class PaperProfile:
    """v̂_i, v_i, and the number of citing papers, in all and by year."""

    profile: Vectors
    content: Vectors
    in_degree: int
    years: list[tuple[int, int]]
    version: int


def score_profiles(
    database: Database,
    paper_ids: Sequence[str],
    query: NDArray[np.float32],
    as_of: PartialDate,
    lexical: LexicalQuery | None = None,
) -> tuple[list[ProfileScore], list[str]]:
    """The scores of the published papers, in the order of the ids without repetitions, and the ids of unknown papers.

    Lexical scores are 0 without a lexical query, or if the serving view holds no words.
    """
    paper_ids = list(dict.fromkeys(paper_ids))
    with database.reading() as connection:
        view = serving_view(connection)
        if query.shape != (view.model.dimension,):
            raise InvalidField("query_vector", f"{query.size} components", f"{view.model.dimension} components")
        if not np.isfinite(query).all():
            raise InvalidField("query_vector", "a component that is not finite", "finite components")
        states = LedgerRows(connection).papers(paper_ids)
        known = [paper_id for paper_id in paper_ids if paper_id in states and states[paper_id].known]
        unknown = [paper_id for paper_id in paper_ids if paper_id not in states or not states[paper_id].known]
        if not known:
            return [], unknown
        rows = [states[paper_id] for paper_id in known]
        contents, totals = _totals(connection, view, rows, as_of)
        matches = _matches(connection, view, rows, as_of, lexical) if lexical else {}
    cosines = scores(query, profile(contents, totals, view.weights))
    parts = shares(query, contents, totals, view.weights)
    found: list[ProfileScore] = []
    for paper_id, cosine, count, part in zip(known, cosines, totals.count, parts, strict=True):
        matched = matches.get(paper_id, NO_TERMS)
        score, words = float(cosine), float(matched.values.sum(dtype=np.float64))
        hybrid = score + (lexical.weight if lexical else 0.0) * words
        found.append(ProfileScore(paper_id, score, int(count), tuple(part.tolist()), words, hybrid, matched))
    return found, unknown


def get_profile(database: Database, paper_id: str, as_of: PartialDate) -> PaperProfile:
    """The profile of one paper. Raises NotFound for an unknown paper."""
    with database.reading() as connection:
        view = serving_view(connection)
        state = LedgerRows(connection).papers([paper_id]).get(paper_id)
        if state is None or not state.known:
            raise NotFound(f"no paper {paper_id!r} was published", paper_id=paper_id)
        contents, sums = _read(connection, view, [state], as_of)
    totals = totals_of([paper_id], sums, view.model.dimension)
    return PaperProfile(
        profile(contents, totals, view.weights)[0],
        contents[0].astype(np.float32),
        int(totals.count[0]),
        sorted((year, int(of_year.count)) for (_, year), of_year in sums.items()),
        state.version,
    )


def list_references(database: Database, paper_ids: Sequence[str], as_of: PartialDate) -> dict[str, list[str]]:
    """The papers that each published paper cites, sorted by id. With `as_of`, only citing papers dated before count."""
    edges = schema.edges
    query = sa.select(edges.c.citing, edges.c.cited).where(edges.c.present)
    if as_of.known:
        query = query.where(edges.c.day > 0, edges.c.day < as_of.first_day())
    paper_ids = list(dict.fromkeys(paper_ids))
    with database.reading() as connection:
        states = LedgerRows(connection).papers(paper_ids)
        cited: dict[str, list[str]] = {key: [] for key in paper_ids if key in states and states[key].known}
        for row in select_in(connection, query, edges.c.citing, cited):
            cited[row.citing].append(row.cited)
    return {citing: sorted(found) for citing, found in cited.items()}


def _totals(
    connection: Connection, view: View, states: Sequence[PaperState], as_of: PartialDate
) -> tuple[NDArray[np.float64], ProfileSums]:
    """The contents and the sums over all years, as stacks. Every answered query calls this for its candidates."""
    ids, model = [state.id for state in states], view.model
    if as_of.known:
        contents, sums = _read(connection, view, states, as_of)
        return contents, totals_of(ids, sums, model.dimension)
    return _contents(connection, view, states), read_totals(connection, model.hash, ids, model.dimension)


def _contents(connection: Connection, view: View, states: Sequence[PaperState]) -> NDArray[np.float64]:
    vectors = read_vectors(connection, view.model.hash, (state.text for state in states))
    return from_fixed(np.stack([vectors[state.text] for state in states]))


def _read(
    connection: Connection, view: View, states: Sequence[PaperState], as_of: PartialDate
) -> tuple[NDArray[np.float64], YearSums]:
    model, ids = view.model, [state.id for state in states]
    contents = _contents(connection, view, states)
    if not as_of.known:
        return contents, read_years(connection, model.hash, ids)
    # A citation of an unknown year may be newer than the date, so it is left out.
    sums = read_years(connection, model.hash, ids, before=as_of.year)
    return contents, sums | _boundary_year(connection, view, ids, as_of)


def _matches(
    connection: Connection, view: View, states: Sequence[PaperState], as_of: PartialDate, lexical: LexicalQuery
) -> dict[str, Terms]:
    """For each paper, what each term of the query adds to its lexical score."""
    said = None
    if as_of.known:
        ids = [state.id for state in states]
        before = read_said_before(connection, ids, as_of.year)
        at_boundary = said_by(connection, _boundary_edges(connection, ids, as_of))
        this_year = ((cited, counts) for (cited, year), counts in at_boundary.items() if year == EVERY_YEAR)
        said = total_by_paper([*before.items(), *this_year])
    bags = read_bags(connection, view.words, states, said)
    return {paper_id: contributions(lexical, terms, length) for paper_id, (terms, length) in bags.items()}


def _boundary_edges(connection: Connection, cited: Sequence[str], as_of: PartialDate) -> Iterator[sa.Row[Any]]:
    """The citations made in the year of the as-of date, before that date."""
    edges = schema.edges
    query = sa.select(edges).where(
        edges.c.present, edges.c.year == as_of.year, edges.c.day > 0, edges.c.day < as_of.first_day()
    )
    return select_in(connection, query, edges.c.cited, cited)


def _boundary_year(connection: Connection, view: View, cited: Sequence[str], as_of: PartialDate) -> YearSums:
    """The sums of the as-of date's year up to that date, computed from the edges: stored sums are of whole years."""
    net: dict[tuple[str, Contribution], int] = {}
    for row in _boundary_edges(connection, cited, as_of):
        key = row.cited, contribution_of(row)
        net[key] = net.get(key, 0) + 1
    texts = {text for _, contribution in net for text in (contribution.text, *contribution.contexts)}
    return year_sums_of(net, read_vectors(connection, view.model.hash, texts), view.model.dimension)
