"""Background work: builds vectors and sums for a new model, and word counts for an older ledger, while events go on.

The states of a model are ENCODING → SUMMING → READY. Events store vectors for it in every state. In ENCODING, older
papers have encode marks until their texts are encoded. In SUMMING, sums are built for some papers at a time, in the
order of their ids, each time in an exclusive transaction; events update the sums that exist. Words are counted before
any model is filled; their states are TEXTS → SAID → READY.
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
    """Does the next step for the words or for a model that is not ready. Returns False if there is nothing to do."""
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
        except FailedPrecondition as error:  # this model's encoder cannot be loaded; go on with the next model
            failed = error
        else:
            return True
    if failed:
        raise failed
    return False


def fall_behind(
    database: Database, connection: Connection, model: Model, papers: Iterable[str], *, alone: bool
) -> None:
    """Sets a model back to ENCODING, because this process cannot encode the new texts of these papers.

    The model's views wait until the encoder can be loaded again or the views are dropped. This takes an exclusive
    transaction, because other transactions may be adding to the sums that will be rebuilt.
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
        # A revision applied in the meantime stores the terms of its own texts.
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
    """The next cited papers after this id, in the order of ids."""
    edges = schema.edges
    query = sa.select(edges.c.cited).where(edges.c.cited > paper_id, edges.c.present).distinct()
    return list(connection.scalars(query.order_by(edges.c.cited).limit(limit)))


def _encode_some(database: Database, encoders: Encoders, model: Model) -> None:
    with database.reading() as connection:
        papers = _encode_marks(connection, model.hash)
        # A paper may be revised before these texts are encoded. That is harmless: a revision stores its own vectors.
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
        # A model that was set back to ENCODING has outdated sums, also of papers that are no longer cited.
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
