"""Gives a new model its vectors and sums while events go on: encode every text, then build every sum.

A model goes ENCODING → SUMMING → READY. From the start, events bring vectors for it; while it is ENCODING, the papers
that were there before have encode marks. While it is SUMMING, sums are built paper by paper in the order of ids, each
piece in a transaction that has the ledger to itself; events keep up the sums that are built.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from citewell.profiler.ledger import schema
from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.encoding import Encoders, encode
from citewell.profiler.ledger.facts import read_facts
from citewell.profiler.ledger.rows import LedgerRows
from citewell.profiler.ledger.sums import (
    Model,
    read_models,
    replace_year_sums,
    stored_keys,
    sums_from_edges,
    write_vectors,
)

PAPERS_ENCODED = 64
PAPERS_SUMMED = 200


def fill_step(database: Database, encoders: Encoders) -> bool:
    """Does the next piece of work for a model that is not ready; False when there is none."""
    with database.reading() as connection:
        model = next((model for model in read_models(connection) if model.state != "READY"), None)
    if model is None:
        return False
    if model.state == "SUMMING":
        _sum_some(database, model.hash)
    else:
        _encode_some(database, encoders, model)
    return True


def _encode_some(database: Database, encoders: Encoders, model: Model) -> None:
    with database.reading() as connection:
        papers = _encode_marks(connection, model.hash)
        # Read now, and encoded even if the paper is revised meanwhile: the revision brings its own vectors.
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
    edges = schema.edges
    with database.writing(alone=True) as connection:
        model = next((model for model in read_models(connection) if model.hash == model_hash), None)
        if model is None or model.state != "SUMMING":  # another process was here
            return
        query = sa.select(edges.c.cited).where(edges.c.cited > model.summed_to, edges.c.present).distinct()
        cited = list(connection.scalars(query.order_by(edges.c.cited).limit(PAPERS_SUMMED)))
        if not cited:
            _set(connection, model.hash, before="SUMMING", state="READY", summed_to="")
            return
        sums = sums_from_edges(connection, model.hash, model.dimension, cited)
        replace_year_sums(database, connection, model.hash, cited, sums)
        _set(connection, model.hash, before="SUMMING", summed_to=cited[-1])


def _set(connection: Connection, model: str, before: str, **values: str) -> None:
    table = schema.models
    connection.execute(sa.update(table).where(table.c.hash == model, table.c.state == before).values(**values))
