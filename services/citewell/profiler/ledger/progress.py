"""The outcomes of events, and the offsets up to which each partition of the log is applied and searchable."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from citewell.profiler.ledger import schema
from citewell.profiler.ledger.database import Database, read_in
from citewell.profiler.ledger.rules import Result
from citewell.profiler.ledger.views import View, is_complete, serving_view
from citewell.scholarly.outcomes import EventState, Outcome
from citewell.scholarly.positions import LogPosition

OFFSETS_AT_ONCE = 1000


def record(database: Database, connection: Connection, results: Iterable[Result]) -> None:
    """Stores each event's outcome and its position in the log.

    The first outcome is kept, with one exception: a later APPLIED overwrites DEAD. Events loaded from a file have no
    position; of these only dead ones are stored.
    """
    results = [result for result in results if result.position or result.outcome is Outcome.DEAD]
    rows = [
        {
            "event_id": event_name(result.event_id, result.position),
            "outcome": result.outcome.value,
            "reason": result.reason,
            "message": result.message.replace("\0", "\\0"),  # PostgreSQL cannot store NUL characters
            "effect": result.effect,
        }
        for result in results
    ]
    applied = [row for row in rows if row["outcome"] == Outcome.APPLIED.value]
    database.upsert(connection, schema.events, applied, where=schema.events.c.outcome == Outcome.DEAD.value)
    database.insert_missing(connection, schema.events, rows)
    places = [
        {**_place(result.position), "event_id": event_name(result.event_id, result.position)}
        for result in results
        if result.position is not None
    ]
    database.insert_missing(connection, schema.sources, places)
    for log_id, partition in sorted({(place["log_id"], place["log_partition"]) for place in places}):
        _advance(database, connection, str(log_id), int(partition))


def recorded_dead(connection: Connection, event_ids: Iterable[str]) -> frozenset[str]:
    """The ids of these events that are recorded as dead."""
    query = "SELECT event_id FROM events WHERE outcome = ? AND event_id IN {}"
    return frozenset(event_id for (event_id,) in read_in(connection, query, event_ids, Outcome.DEAD.value))


def event_state(connection: Connection, key: str | LogPosition) -> EventState:
    """The state of an event, by its id or by its position in the log."""
    return event_states(connection, [key])[key]


def event_states(
    connection: Connection, keys: Iterable[str | LogPosition], serving: View | None = None
) -> dict[str | LogPosition, EventState]:
    """The state of each event, read with a fixed number of queries. `serving`: the serving view, if it was read before.

    No event is searchable while the serving view is incomplete. Marks alone cannot tell: after a restore nothing is
    projected into the view, and an index that lost data lacks papers whose marks were deleted long ago.
    """
    keys = set(keys)
    if not keys:
        return {}
    names: dict[str | LogPosition, str] = {key: key for key in keys if isinstance(key, str)}
    offsets: dict[tuple[str, int], list[int]] = {}
    for key in keys:
        if isinstance(key, LogPosition):
            offsets.setdefault((key.log_id, key.partition), []).append(key.offset)
    for (log_id, partition), some in offsets.items():
        query = "SELECT log_offset, event_id FROM sources WHERE log_id = ? AND log_partition = ? AND log_offset IN {}"
        for offset, event_id in read_in(connection, query, some, log_id, partition):
            names[LogPosition(log_id, partition, offset)] = event_id
    found = {
        row.event_id: row for row in read_in(connection, "SELECT * FROM events WHERE event_id IN {}", names.values())
    }
    view = serving or serving_view(connection)
    effects = (row.effect for row in found.values() if row.outcome != Outcome.DEAD.value)
    marked = read_in(connection, "SELECT DISTINCT event FROM marks WHERE view = ? AND event IN {}", effects, view.name)
    unprojected = {event for (event,) in marked}
    complete = is_complete(connection, view)
    states: dict[str | LogPosition, EventState] = {}
    for key in keys:
        event = found.get(names.get(key, ""))
        if event is None:
            states[key] = EventState(None)
        else:
            searchable = complete and event.outcome != Outcome.DEAD.value and event.effect not in unprojected
            states[key] = EventState(Outcome(event.outcome), searchable, event.reason, event.message)
    return states


def applied(connection: Connection) -> list[LogPosition]:
    """For each partition, the offset below which every event is applied or dead."""
    return [
        LogPosition(row.log_id, row.log_partition, row.applied)
        for row in connection.execute(sa.select(schema.positions).order_by("log_id", "log_partition"))
    ]


def searchable(connection: Connection, serving: View | None = None) -> list[LogPosition]:
    """For each partition, the offset below which every event is searchable in the serving view (or dead).

    Empty while the serving view is incomplete. `serving`: the serving view, if it was read before.
    """
    view = serving or serving_view(connection)
    if not is_complete(connection, view):
        return []
    marks, events, sources = schema.marks, schema.events, schema.sources
    waiting = sa.select(marks.c.event).where(marks.c.view == view.name, marks.c.event != "").distinct().cte("waiting")
    query = (
        sa.select(sources.c.log_id, sources.c.log_partition, sa.func.min(sources.c.log_offset).label("first"))
        .join_from(waiting, events, events.c.effect == waiting.c.event)
        .join(sources, sources.c.event_id == events.c.event_id)
        .group_by(sources.c.log_id, sources.c.log_partition)
    )
    first = {(row.log_id, row.log_partition): row.first for row in connection.execute(query)}
    return [
        LogPosition(at.log_id, at.partition, min(at.offset, first.get((at.log_id, at.partition), at.offset)))
        for at in applied(connection)
    ]


def _advance(database: Database, connection: Connection, log_id: str, partition: int) -> None:
    """Moves the applied offset forward to the first offset that is not recorded yet."""
    table, sources = schema.positions, schema.sources
    database.insert_missing(connection, table, [{"log_id": log_id, "log_partition": partition, "applied": 0}])
    here = sa.and_(table.c.log_id == log_id, table.c.log_partition == partition)
    # Lock this row before reading the sources: of two concurrent transactions, the second then sees the first's rows.
    start = end = connection.execute(sa.select(table.c.applied).where(here).with_for_update()).scalar_one()
    query = (
        sa.select(sources.c.log_offset)
        .where(
            sources.c.log_id == log_id, sources.c.log_partition == partition, sources.c.log_offset >= sa.bindparam("at")
        )
        .order_by(sources.c.log_offset)
        .limit(OFFSETS_AT_ONCE)
    )
    while True:
        offsets = list(connection.scalars(query, {"at": end}))
        without_gap = sum(offset == end + number for number, offset in enumerate(offsets))
        end += without_gap
        if without_gap < OFFSETS_AT_ONCE:
            break
    if end != start:
        connection.execute(sa.update(table).where(here).values(applied=end))


def event_name(event_id: str, position: LogPosition | None) -> str:
    """The event's id, or a name made from its position in the log if it has no usable id."""
    if event_id and event_id.isprintable():
        return event_id
    if position is None:
        return ""
    return f"{position.log_id}/{position.partition}/{position.offset}"


def _place(position: LogPosition) -> dict[str, str | int]:
    return {"log_id": position.log_id, "log_partition": position.partition, "log_offset": position.offset}
