"""The number of points that the index must hold for a view, and refilling a view that holds fewer."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from citewell.profiler.ledger import schema
from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.lifecycle import created_key, mark_everything
from citewell.profiler.ledger.rows import KEY_BYTES
from citewell.profiler.ledger.rules import Kind
from citewell.profiler.ledger.views import View, read_meta


@dataclass(frozen=True, slots=True)
class Expected:
    """The number of points that the index has acknowledged, that is, of objects without a mark."""

    papers: int
    spans: int


def read_expected(connection: Connection, view: View) -> Expected:
    """Counts all papers and citations. Slow, so call it rarely."""
    edges = schema.edges
    key_bytes = sa.select(sa.func.sum(sa.func.length(edges.c.context_keys))).where(
        edges.c.present, _unmarked(view, Kind.SPANS, edges.c.citing)
    )
    return Expected(_papers(connection, view), int(connection.scalar(key_bytes) or 0) // KEY_BYTES)


def refill_view(database: Database, view: View) -> bool:
    """Marks every object of the view, and returns True. Returns False if the index never had this view."""
    with database.writing(alone=True) as connection:
        if not (read_meta(connection, created_key(view.name)) or _papers(connection, view)):
            return False
        mark_everything(database, connection, view.name)
    return True


def note_created(database: Database, view: View) -> None:
    """Records that the view was created in the index. A view without this record counts as created once the index has
    acknowledged a paper of it."""
    with database.writing() as connection:
        database.insert_missing(connection, schema.meta, [{"name": created_key(view.name), "value": "created"}])


def _papers(connection: Connection, view: View) -> int:
    papers = schema.papers
    query = sa.select(sa.func.count()).where(papers.c.body_revision > 0, _unmarked(view, Kind.PAPER, papers.c.id))
    return connection.scalar(query) or 0


def _unmarked(view: View, kind: Kind, column: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    marks = schema.marks
    return sa.not_(sa.exists().where(marks.c.view == view.name, marks.c.kind == kind.value, marks.c.object == column))
