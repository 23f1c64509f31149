"""Metrics of the views: how complete they are, what waits to be projected, and how old what is searchable is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import sqlalchemy as sa
from opentelemetry.metrics import CallbackOptions, Observation
from sqlalchemy.engine import Connection

from citewell.profiler.ledger import progress, schema
from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.views import is_complete, read_views
from citewell.runtime.backlog import Backlog
from citewell.runtime.telemetry import meter
from citewell.scholarly.positions import LogPosition

MOST_COUNTED = 100_000
"""Marks are counted up to here: during a rebuild there may be many millions."""

_complete = meter.create_gauge(
    "citewell_view_complete", description="1 while the served view holds everything but the newest events, else 0"
)


class ViewMetrics:
    """Reads the ledger on each `look` and sets the metrics."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._backlog = Backlog(time.monotonic)
        self._waiting: dict[str, int] = {}
        self._searchable: dict[tuple[str, int], int] = {}
        meter.create_observable_gauge(
            "citewell_snapshot.age",
            [self._age],
            unit="s",
            description="Age of the oldest event that the ledger has applied and the served view does not hold",
        )
        meter.create_observable_gauge(
            "citewell_view_waiting",
            [self._marks],
            description=f"Objects that wait to be projected, by view; at most {MOST_COUNTED}",
        )

    async def look(self) -> None:
        """Brings the metrics up to date."""
        await asyncio.to_thread(self._look)

    def _look(self) -> None:
        with self._database.reading() as connection:
            views = read_views(connection)
            complete = any(is_complete(connection, view) for view in views if view.serving)
            applied, searchable = progress.applied(connection), progress.searchable(connection)
            waiting = {view.name: _count_marks(connection, view.name) for view in views}
        # An incomplete view says no positions. The last known ones stay, so that the age grows with what comes in.
        self._searchable |= {_partition(at): at.offset for at in searchable}
        for at in applied:
            self._backlog.sample(_partition(at), at.offset, self._searchable.get(_partition(at), 0))
        self._backlog.keep({_partition(at) for at in applied})
        self._waiting = waiting
        _complete.set(int(complete))

    def _age(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(max(self._backlog.seconds().values(), default=0.0))]

    def _marks(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(count, {"view": view}) for view, count in self._waiting.items()]


def _partition(position: LogPosition) -> tuple[str, int]:
    return position.log_id, position.partition


def _count_marks(connection: Connection, view: str) -> int:
    some = sa.select(sa.literal(1)).where(schema.marks.c.view == view).limit(MOST_COUNTED).subquery()
    return connection.scalar(sa.select(sa.func.count()).select_from(some)) or 0
