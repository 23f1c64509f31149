"""How many points a view in the index must hold, and how it is filled again when it holds fewer."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from citewell.profiler.ledger import schema
from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.lifecycle import mark_everything
from citewell.profiler.ledger.rows import KEY_BYTES
from citewell.profiler.ledger.rules import Kind
from citewell.profiler.ledger.views import View


@dataclass(frozen=True, slots=True)
class Expected:
    """The points that the index has acknowledged: those of objects without a mark."""

    papers: int
    spans: int


def read_expected(connection: Connection, view: View) -> Expected:
    """Counts over all papers and citations: for rare use."""
    papers, edges, marks = schema.papers, schema.edges, schema.marks

    def unmarked(kind: Kind, column: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        waiting = sa.exists().where(marks.c.view == view.name, marks.c.kind == kind.value, marks.c.object == column)
        return sa.not_(waiting)

    count = sa.select(sa.func.count()).where(papers.c.body_revision > 0, unmarked(Kind.PAPER, papers.c.id))
    key_bytes = sa.select(sa.func.sum(sa.func.length(edges.c.context_keys))).where(
        edges.c.present, unmarked(Kind.SPANS, edges.c.citing)
    )
    return Expected(connection.scalar(count) or 0, int(connection.scalar(key_bytes) or 0) // KEY_BYTES)


def refill_view(database: Database, name: str) -> int:
    """Marks every object of the view that is not marked yet; how many those were."""
    with database.writing(alone=True) as connection:
        return mark_everything(database, connection, name)
