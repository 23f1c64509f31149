"""The points that the index should hold: for papers, and for the spans in which papers cite others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from citewell.profiler.ledger import schema
from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.facts import ContextText, TextKey
from citewell.profiler.ledger.rows import LedgerRows
from citewell.profiler.ledger.rules import Edge, Kind, PaperState
from citewell.profiler.ledger.said_terms import read_said_terms
from citewell.profiler.ledger.sums import read_totals, read_vectors
from citewell.profiler.ledger.text_terms import read_text_terms
from citewell.profiler.ledger.views import PointForm, View
from citewell.profiler.lexical import NO_COUNTS, BagRules, Counts, TextTerms, bag
from citewell.profiler.profiles import Vectors, from_fixed, profile
from citewell.scholarly.dates import UNKNOWN_DATE, PartialDate
from citewell.scholarly.lexical import NO_TERMS, Terms
from citewell.scholarly.papers import Paper
from citewell.scholarly.publications import Publication
from citewell.scholarly.spans import EXTRACTOR, Span, spans
from citewell.scholarly.words import count_terms

Object = tuple[Kind, str]
WHOLE_TEXT = Span(0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class PaperPoint:
    """A paper's point: its vector and words for search, and its metadata for display."""

    paper: Paper
    profile: Vectors
    content: Vectors
    version: int
    hidden: bool
    terms: Terms = NO_TERMS
    """Terms of title, abstract and citing contexts. If there are too many, those with the largest counts."""
    length: float = 0.0
    """The sum of the counts of all words, including those that `terms` leaves out."""


@dataclass(frozen=True, slots=True, eq=False)
class SpanPoint:
    """A context in which one paper cites another."""

    key: str
    citing_id: str
    cited_id: str
    text: str
    vector: Vectors
    published: PartialDate
    revision: int
    version: int
    hidden: bool
    terms: Terms = NO_TERMS
    """Terms of the whole text."""
    span: Span = WHOLE_TEXT
    """The part of the text about the cited paper. An empty span means the whole text."""
    span_terms: Terms = NO_TERMS


@dataclass
class Points:
    """The points of some objects, and the version of each object at which they were read."""

    papers: list[PaperPoint] = field(default_factory=list)
    spans: list[SpanPoint] = field(default_factory=list)
    versions: dict[Object, int] = field(default_factory=dict)


def marked(
    connection: Connection, view: str, limit: int, *, bulk: bool = False, after: Object | None = None
) -> list[Object]:
    """Marked objects in the order of their keys: of single events, or with `bulk` of loads, rebuilds and repairs."""
    marks = schema.marks
    query = sa.select(marks.c.kind, marks.c.object).where(marks.c.view == view, marks.c.bulk == bulk).distinct()
    if after:
        query = query.where(sa.tuple_(marks.c.kind, marks.c.object) > sa.tuple_(after[0].value, after[1]))
    rows = connection.execute(query.order_by(marks.c.kind, marks.c.object).limit(limit))
    return [(Kind(row.kind), row.object) for row in rows]


def unmark(database: Database, view: str, versions: Mapping[Object, int]) -> None:
    """Deletes the marks up to the projected versions."""
    marks = schema.marks
    delete = sa.delete(marks).where(
        marks.c.view == view,
        marks.c.kind == sa.bindparam("of_kind"),
        marks.c.object == sa.bindparam("of_object"),
        marks.c.version <= sa.bindparam("up_to"),
    )
    rows = [
        {"of_kind": kind.value, "of_object": object_id, "up_to": version}
        for (kind, object_id), version in sorted(versions.items())
    ]
    if rows:
        with database.writing() as connection:
            connection.execute(delete, rows)


def read_points(connection: Connection, view: View, objects: Iterable[Object]) -> Points:
    """The points of these objects, as this transaction sees them."""
    objects = set(objects)
    rows = LedgerRows(connection)
    states = rows.papers(object_id for _, object_id in objects)
    said = {key for kind, key in objects if kind is Kind.SPANS}
    bodies = rows.bodies(states.keys() & said) | rows.bodies(states.keys() - said, contexts=False)
    points = Points(versions={(kind, key): states[key].version for kind, key in objects if key in states})
    papers = [states[key] for kind, key in objects if kind is Kind.PAPER and key in states and states[key].known]
    _add_papers(points, connection, view, papers, bodies)
    speakers = [states[key] for kind, key in objects if kind is Kind.SPANS and key in states]
    _add_spans(points, connection, view, speakers, bodies, rows.edges(state.id for state in speakers))
    return points


def _add_papers(
    points: Points, connection: Connection, view: View, states: list[PaperState], bodies: Mapping[str, Publication]
) -> None:
    if not states:
        return
    model, ids = view.model, [state.id for state in states]
    vectors = read_vectors(connection, model.hash, (state.text for state in states))
    contents = from_fixed(np.stack([vectors[state.text] for state in states]))
    totals = read_totals(connection, model.hash, ids, model.dimension)
    profiles = profile(contents, totals, view.weights)
    bags = read_bags(connection, view.words, [state for state in states if not state.retracted])
    for number, state in enumerate(states):
        terms, length = bags.get(state.id, (NO_TERMS, 0.0))
        points.papers.append(
            PaperPoint(
                paper_of(bodies[state.id], state, int(totals.count[number])),
                profiles[number],
                contents[number].astype(np.float32),
                state.version,
                hidden=state.retracted,
                terms=terms,
                length=length,
            )
        )


def read_bags(
    connection: Connection,
    rules: BagRules | None,
    states: Sequence[PaperState],
    said: Mapping[str, Counts] | None = None,
) -> dict[str, tuple[Terms, float]]:
    """The bags of words of known papers, and their lengths. `said`: term counts of citing contexts; None = read all."""
    if rules is None:
        return {}
    own = read_text_terms(connection, (state.text for state in states))
    if said is None:
        said = read_said_terms(connection, (state.id for state in states))
    return {state.id: bag(own[state.text], said.get(state.id, NO_COUNTS), rules) for state in states}


def paper_of(body: Publication, state: PaperState, in_degree: int) -> Paper:
    """The paper's metadata for display."""
    return Paper(
        id=body.paper_id,
        title=body.title,
        abstract=body.abstract,
        authors=body.authors,
        venue=body.venue,
        published=body.published,
        external_ids=body.external_ids,
        in_degree=in_degree,
        revision=state.revision,
    )


def _add_spans(
    points: Points,
    connection: Connection,
    view: View,
    states: list[PaperState],
    bodies: Mapping[str, Publication],
    edges: Mapping[str, Mapping[str, Edge]],
) -> None:
    vectors = read_vectors(
        connection,
        view.model.hash,
        (key for state in states for edge in edges.get(state.id, {}).values() for key in _span_texts(edge)),
    )
    terms = read_text_terms(connection, vectors) if view.form.words else {}
    for state in states:
        body = bodies.get(state.id)
        texts = _context_texts(body) if body else {}
        for cited, edge in edges.get(state.id, {}).items():
            for text, hidden in _span_texts(edge).items():
                if hidden and text not in vectors:
                    continue  # removed before this model was registered, so the index never held it
                words = _span_words(view.form, "" if hidden else texts.get(text, ""), terms.get(text))
                points.spans.append(
                    SpanPoint(
                        span_key(state.id, cited, text),
                        state.id,
                        cited,
                        texts.get(text, ""),
                        from_fixed(vectors[text]).astype(np.float32),
                        body.published if body else UNKNOWN_DATE,
                        state.revision,
                        state.version,
                        hidden,
                        *words,
                    )
                )


def _span_words(form: PointForm, text: str, stored: TextTerms | None) -> tuple[Terms, Span, Terms]:
    """`stored`: the ledger's counts of the text's terms; None while an older ledger is being counted."""
    if not text:
        return NO_TERMS, WHOLE_TEXT, NO_TERMS
    terms = NO_TERMS
    if form.words:
        terms = Terms(stored.ids, stored.body.astype(np.float32)) if stored else Terms.of(count_terms(text))
    if form.extractor != EXTRACTOR:  # an older view, whose spans are whole contexts
        return terms, WHOLE_TEXT, NO_TERMS
    best = spans(text)[0]
    return terms, best, Terms.of(count_terms(best.of(text)))


def _span_texts(edge: Edge) -> dict[TextKey, bool]:
    """The contexts of an edge that the index may hold, each with whether it is hidden."""
    now = edge.contribution.contexts if edge.contribution else ()
    return dict.fromkeys(now, False) | dict.fromkeys(sorted(edge.gone), True)


def _context_texts(body: Publication) -> dict[TextKey, str]:
    return {ContextText(text).key: text for texts in body.contexts().values() for text in texts}


def span_key(citing: str, cited: str, text: TextKey, ordinal: int = 0) -> str:
    """The key of a span point. It depends only on the two papers and the context, so it is equal in all views."""
    return hashlib.sha256("\n".join((citing, cited, text.hex(), str(ordinal))).encode()).hexdigest()[:32]
