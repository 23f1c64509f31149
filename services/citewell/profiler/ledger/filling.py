"""Gives a new model its vectors and sums, and an older ledger its words, while events go on.

A model goes ENCODING → SUMMING → READY. From the start, events bring vectors for it; while it is ENCODING, the papers
that were there before have encode marks. While it is SUMMING, sums are built paper by paper in the order of ids, each
piece in a transaction that has the ledger to itself; events keep up the sums that are built. Words go the same way,
TEXTS → SAID → READY, before the models.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from citewell.profiler.ledger import schema
from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.encoding import Encoders, encode
from citewell.profiler.ledger.facts import read_facts
from citewell.profiler.ledger.rows import LedgerRows, NeedsAlone
from citewell.profiler.ledger.said_terms import replace_said_terms, said_terms_from_edges
from citewell.profiler.ledger.sums import (
    Model,
    read_models,
    replace_year_sums,
    stored_keys,
    sums_from_edges,
    write_vectors,
)
from citewell.profiler.ledger.text_terms import Lexicon, counted, move_lexicon, read_lexicon, write_text_terms
from citewell.runtime.errors import FailedPrecondition

PAPERS_ENCODED = 64
PAPERS_SUMMED = 200
PAPERS_COUNTED = 200


def fill_step(database: Database, encoders: Encoders) -> bool:
    """Does the next piece of work for words or a model that are not ready; False when there is none."""
    with database.reading() as connection:
        lexicon = read_lexicon(connection)
        models = [model for model in read_models(connection) if model.state != "READY"]
    if lexicon and lexicon.state != "READY":
        (_count_texts if lexicon.state == "TEXTS" else _count_said)(database, lexicon)
        return True
    failed: FailedPrecondition | None = None
    for model in models:
        try:
            if model.state == "SUMMING":
                _sum_some(database, model.hash)
            else:
                _encode_some(database, encoders, model)
        except FailedPrecondition as error:  # its encoder cannot be loaded: another model's may
            failed = error
        else:
            return True
    if failed:
        raise failed
    return False


def fall_behind(
    database: Database, connection: Connection, model: Model, papers: Iterable[str], *, alone: bool
) -> None:
    """Sets a model back to ENCODING, because the vectors of these papers' new texts cannot be made here.

    Its views wait until the encoder is there again, or are dropped. Only a transaction that is alone may do it, for
    others may be adding to the sums that are built anew.
    """
    if model.state != "ENCODING" and not alone:
        raise NeedsAlone
    rows = [{"model": model.hash, "paper_id": paper_id} for paper_id in sorted(papers)]
    database.insert_missing(connection, schema.encode_marks, rows)
    _set(connection, model.hash, before=model.state, state="ENCODING", summed_to="")


def _count_texts(database: Database, lexicon: Lexicon) -> None:
    bodies = schema.bodies
    with database.reading() as connection:
        query = sa.select(bodies.c.paper_id).where(bodies.c.paper_id > lexicon.counted_to)
        papers = list(connection.scalars(query.order_by(bodies.c.paper_id).limit(PAPERS_COUNTED)))
        # A revision that arrives meanwhile brings the terms of its own texts.
        told = LedgerRows(connection).bodies(papers).values()
    texts = {key: text for body in told for key, text in read_facts(body)[1].items()}
    with database.writing() as connection:
        write_text_terms(database, connection, counted(texts))
        move_lexicon(connection, lexicon, *(("TEXTS", papers[-1]) if papers else ("SAID", "")))


def _count_said(database: Database, lexicon: Lexicon) -> None:
    with database.writing(alone=True) as connection:
        if read_lexicon(connection) != lexicon:  # another process has done this step
            return
        cited = _cited_after(connection, lexicon.counted_to, PAPERS_COUNTED)
        replace_said_terms(database, connection, cited, said_terms_from_edges(connection, cited))
        move_lexicon(connection, lexicon, *(("SAID", cited[-1]) if cited else ("READY", "")))


def _cited_after(connection: Connection, paper_id: str, limit: int) -> list[str]:
    """The next papers that are cited, in the order of ids."""
    edges = schema.edges
    query = sa.select(edges.c.cited).where(edges.c.cited > paper_id, edges.c.present).distinct()
    return list(connection.scalars(query.order_by(edges.c.cited).limit(limit)))


def _encode_some(database: Database, encoders: Encoders, model: Model) -> None:
    with database.reading() as connection:
        papers = _encode_marks(connection, model.hash)
        # These texts are encoded even if a paper is revised meanwhile: the revision brings its own vectors.
        bodies = LedgerRows(connection).bodies(papers)
        texts = {key: text for body in bodies.values() for key, text in read_facts(body)[1].items()}
        known = stored_keys(connection, model.hash, texts)
    new = {key: text for key, text in texts.items() if key not in known}
    vectors = encode(encoders.of_model(model.name, model.hash), new)
    with database.writing() as connection:
        write_vectors(database, connection, model.hash, vectors)
        table = schema.encode_marks
        connection.execute(sa.delete(table).where(table.c.model == model.hash, table.c.paper_id.in_(papers)))
        if not _encode_marks(connection, model.hash):
            _set(connection, model.hash, before="ENCODING", state="SUMMING")


def _encode_marks(connection: Connection, model: str) -> list[str]:
    table = schema.encode_marks
    query = sa.select(table.c.paper_id).where(table.c.model == model).order_by(table.c.paper_id).limit(PAPERS_ENCODED)
    return list(connection.scalars(query))


def _sum_some(database: Database, model_hash: str) -> None:
    with database.writing(alone=True) as connection:
        model = next((model for model in read_models(connection) if model.hash == model_hash), None)
        if model is None or model.state != "SUMMING":  # another process has finished the model, or it was dropped
            return
        cited = _cited_after(connection, model.summed_to, PAPERS_SUMMED)
        # A model that fell behind has sums of an older state, also of papers that nobody cites any more.
        table = schema.year_sums
        old = [table.c.model == model.hash, table.c.cited > model.summed_to]
        connection.execute(sa.delete(table).where(*old, *([table.c.cited <= cited[-1]] if cited else [])))
        if not cited:
            _set(connection, model.hash, before="SUMMING", state="READY", summed_to="")
            return
        sums = sums_from_edges(connection, model.hash, model.dimension, cited)
        replace_year_sums(database, connection, model.hash, cited, sums)
        _set(connection, model.hash, before="SUMMING", summed_to=cited[-1])


def _set(connection: Connection, model: str, before: str, **values: str) -> None:
    table = schema.models
    connection.execute(sa.update(table).where(table.c.hash == model, table.c.state == before).values(**values))
