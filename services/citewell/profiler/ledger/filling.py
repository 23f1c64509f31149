"""Gives a new model its vectors and sums while events go on: encode every text, then build every sum.

A model goes ENCODING → SUMMING → READY. While it is ENCODING, new texts leave encode marks. It is SUMMING once no mark
is left, which is made sure of in a transaction that has the ledger to itself; from then on events bring their own
vectors, sums are built paper by paper in the order of ids, and events keep up those that are built.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from citewell.profiler.ledger import schema
from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.encoding import Encoders, encode
from citewell.profiler.ledger.facts import texts_of
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
    if model.encodes:
        _sum_some(database, model.hash)
    elif not _encode_some(database, encoders, model):
        with database.writing(alone=True) as connection:
            if not _encode_marks(connection, model.hash):
                _set(connection, model.hash, state="SUMMING", summed_to="")
    return True


def _encode_some(database: Database, encoders: Encoders, model: Model) -> bool:
    with database.reading() as connection:
        papers = _encode_marks(connection, model.hash)
        bodies = LedgerRows(connection).bodies(papers)
        texts = {key: text for body in bodies.values() for key, text in texts_of(body).items()}
        known = stored_keys(connection, model.hash, texts)
    if not papers:
        return False
    encoder = encoders.of_model(model.name, model.hash)
    vectors = encode(encoder, {key: text for key, text in texts.items() if key not in known})
    with database.writing(alone=True) as connection:
        write_vectors(database, connection, model.hash, vectors)
        # A paper may have changed its texts meanwhile: then it stays marked.
        done = [
            paper_id
            for paper_id, body in LedgerRows(connection).bodies(papers).items()
            if texts_of(body).keys() <= texts.keys()
        ]
        table = schema.encode_marks
        connection.execute(sa.delete(table).where(table.c.model == model.hash, table.c.paper_id.in_(done)))
    return True


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
            _set(connection, model.hash, state="READY", summed_to="")
            return
        sums = sums_from_edges(connection, model.hash, model.dimension, cited)
        replace_year_sums(database, connection, model.hash, cited, sums)
        _set(connection, model.hash, state="SUMMING", summed_to=cited[-1])


def _set(connection: Connection, model: str, **values: str) -> None:
    connection.execute(sa.update(schema.models).where(schema.models.c.hash == model).values(**values))
