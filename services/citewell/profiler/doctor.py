"""Recomputes profiles from citations, and compares the ledger's sums and the index with them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from citewell.profiler.doctor_words import Fault, word_faults
from citewell.profiler.index_views import IndexWriter
from citewell.profiler.ledger import schema
from citewell.profiler.ledger.database import Database, chunks, select_in
from citewell.profiler.ledger.points import Object, PaperPoint, Points, SpanPoint, read_points
from citewell.profiler.ledger.rules import Kind
from citewell.profiler.ledger.schema import EVERY_YEAR
from citewell.profiler.ledger.sums import YearSums, read_all_sums, replace_year_sums, sums_from_edges, with_totals
from citewell.profiler.ledger.views import View, read_views, serving_view
from citewell.profiler.profiles import ProfileSums, normalised
from citewell.runtime.errors import NotFound

PAPERS_AT_ONCE = 256
PROFILE_TOLERANCE = 1e-5


@dataclass
class Report:
    """The findings for one page of papers."""

    total: int
    """Number of papers on all pages."""
    last: str = ""
    """Id of the last paper of this page; empty on the last page."""
    checked: int = 0
    faults: list[Fault] = field(default_factory=list)
    repaired: int = 0


async def check_profiles(
    database: Database,
    index: IndexWriter,
    sample: int,
    seed: int,
    repair: bool,
    after: str = "",
    page_size: int = 0,
) -> Report:
    """Checks one page of all papers, or of a sample drawn by the seed.

    A page begins after the id `after` and has at most `size` papers (0 = no limit). With `repair`, wrong sums are
    replaced and wrong points are written again.
    """
    page, total, more = await asyncio.to_thread(_page, database, sample, seed, after, page_size)
    report = Report(total, last=page[-1] if more else "")
    for some in chunks(page, PAPERS_AT_ONCE):
        faults = await asyncio.to_thread(_sum_faults, database, some, repair)
        faults += await asyncio.to_thread(word_faults, database, some, repair)
        view, expected = await asyncio.to_thread(_expected, database, some)
        papers, spans = [point.paper.id for point in expected.papers], [point.key for point in expected.spans]
        try:
            faults += _index_faults(expected, *await index.read_points(view.name, papers, spans))
        except NotFound:  # the index lost the whole view
            faults += _index_faults(expected, [], [])
        report.checked += len(some)
        report.faults += faults
        if repair and faults:
            report.repaired += await asyncio.to_thread(_project_again, database, {fault.paper_id for fault in faults})
    return report


def _page(database: Database, sample: int, seed: int, after: str, size: int) -> tuple[list[str], int, bool]:
    """The ids of a page, the number of papers on all pages, and whether there is a next page."""
    column = schema.papers.c.id
    ids = sa.select(column).order_by(column)
    with database.reading() as connection:
        total = connection.scalar(sa.select(sa.func.count()).select_from(schema.papers)) or 0
        if sample and sample < total:
            drawn = sorted(random.Random(seed).sample(list(connection.scalars(ids)), sample))
            total, page = sample, [paper_id for paper_id in drawn if paper_id > after]
        else:
            page = list(connection.scalars(ids.where(column > after).limit(size + 1 if size else None)))
    return (page[:size], total, len(page) > size) if size else (page, total, False)


def _sum_faults(database: Database, papers: Sequence[str], repair: bool) -> list[Fault]:
    with database.writing(alone=True) if repair else database.reading() as connection:
        faults: list[Fault] = []
        for model in {view.model for view in read_views(connection) if view.can_be_filled}:
            stored = read_all_sums(connection, model.hash, papers)
            right = sums_from_edges(connection, model.hash, model.dimension, papers)
            faults += _differences(stored, with_totals(right), ProfileSums.zero(model.dimension))
            if repair and faults:
                replace_year_sums(database, connection, model.hash, papers, right)
    return faults


def _differences(stored: YearSums, right: YearSums, zero: ProfileSums) -> Iterator[Fault]:
    for cited, year in sorted({*stored, *right}):
        have, want = stored.get((cited, year), zero), right.get((cited, year), zero)
        years = "all years" if year == EVERY_YEAR else f"year {year}"
        if have.count != want.count:
            yield Fault(cited, "COUNT_MISMATCH", f"{years}: {have.count} citations, the edges say {want.count}")
        elif not (np.array_equal(have.contexts, want.contexts) and np.array_equal(have.contents, want.contents)):
            yield Fault(cited, "SUM_MISMATCH", f"{years}: the sums are not those of its {want.count} citations")


def _expected(database: Database, papers: Sequence[str]) -> tuple[View, Points]:
    """The points of these papers that the index should hold. Objects still waiting to be projected are left out."""
    with database.reading() as connection:
        view = serving_view(connection)
        objects: set[Object] = {(kind, paper_id) for kind in Kind for paper_id in papers}
        return view, read_points(connection, view, objects - _waiting(connection, view, papers))


def _waiting(connection: Connection, view: View, papers: Sequence[str]) -> set[Object]:
    marks = schema.marks
    query = sa.select(marks.c.kind, marks.c.object).where(marks.c.view == view.name).distinct()
    return {(Kind(row.kind), row.object) for row in select_in(connection, query, marks.c.object, papers)}


def _index_faults(expected: Points, papers: Sequence[PaperPoint], spans: Sequence[SpanPoint]) -> list[Fault]:
    by_id, by_key = {point.paper.id: point for point in papers}, {point.key: point for point in spans}
    faults: list[Fault] = []
    for paper in expected.papers:
        faults += _point_faults(paper.paper.id, "paper", paper, by_id.get(paper.paper.id))
        there = by_id.get(paper.paper.id)
        if there and there.version == paper.version and there.hidden == paper.hidden:
            if not paper.hidden:  # a tombstone keeps no vector
                away = float(np.abs(normalised(there.profile) - normalised(paper.profile)).max())
                if not away <= PROFILE_TOLERANCE:
                    faults.append(Fault(paper.paper.id, "PROFILE_DIFFERS", f"by up to {away:.2g}"))
                if (there.terms, there.length) != (paper.terms, paper.length):
                    faults.append(Fault(paper.paper.id, "WORDS_DIFFER", "the index holds another bag of words"))
            if replace(there.paper, abstract="") != replace(paper.paper, abstract=""):
                faults.append(Fault(paper.paper.id, "PAPER_DIFFERS", "the index shows other metadata"))
    for span in expected.spans:
        kept = by_key.get(span.key)
        # A span that was removed before this model existed has no tombstone in the index.
        if span.hidden and not kept:
            continue
        # A citation of the paper raises its version but does not rewrite its spans, so the version is not compared.
        if kept and kept.revision == span.revision:
            span = replace(span, version=kept.version)
            same = (kept.terms, kept.span, kept.span_terms) == (span.terms, span.span, span.span_terms)
            if not (span.hidden or kept.hidden or same):
                faults.append(Fault(span.citing_id, "WORDS_DIFFER", f"the index holds other words of span {span.key}"))
        faults += _point_faults(span.citing_id, f"span {span.key}", span, kept)
    return faults


def _point_faults(
    paper_id: str, name: str, want: PaperPoint | SpanPoint, have: PaperPoint | SpanPoint | None
) -> Iterator[Fault]:
    if have is None:
        yield Fault(paper_id, "INDEX_MISSING", f"{name} is not in the index")
    elif have.version < want.version:
        yield Fault(paper_id, "INDEX_STALE", f"{name} has version {have.version}, the ledger {want.version}")
    elif have.version == want.version and have.hidden != want.hidden:
        yield Fault(paper_id, "HIDDEN_DIFFERS", f"{name} is {'hidden' if have.hidden else 'shown'}")


def _project_again(database: Database, papers: set[str]) -> int:
    """Marks all objects of the papers. Their versions are raised first, so that the new points replace the old ones."""
    table, marks = schema.papers, schema.marks
    with database.writing(alone=True) as connection:
        for some in chunks(sorted(papers)):
            connection.execute(sa.update(table).where(table.c.id.in_(some)).values(version=table.c.version + 1))
        rows = [
            {"view": view.name, "kind": kind.value, "object": row.id, "version": row.version, "event": "", "bulk": True}
            for view in read_views(connection)
            if view.projected
            for row in select_in(connection, sa.select(table).where(table.c.body_revision > 0), table.c.id, papers)
            for kind in Kind
        ]
        database.insert_missing(connection, marks, rows)
    return len(papers)
