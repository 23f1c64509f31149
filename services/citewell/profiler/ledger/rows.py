"""Translates between database rows and the states of `rules.Batch`: reads rows before, writes them after."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from citewell.profiler.ledger import schema
from citewell.profiler.ledger.database import Conflict, Database, read_in
from citewell.profiler.ledger.facts import Facts, TextKey, read_facts
from citewell.profiler.ledger.rules import Batch, Contribution, Edge, PaperState
from citewell.scholarly.publications import Publication
from citewell.types.messages import publication_from_message, publication_to_message
from citewell.types.v1 import publication_pb2

KEY_BYTES = 32


class NeedsAlone(Exception):
    """The transaction must be repeated with exclusive access: an id gets another meaning, or a model falls behind."""


class LedgerRows:
    """The `Reader` of one transaction."""

    def __init__(self, connection: Connection, *, alone: bool = True, locked: frozenset[str] | None = None) -> None:
        """`locked`: the papers whose rows are locked. Only these may be read; None = no restriction."""
        self._connection, self._alone, self._locked = connection, alone, locked

    def papers(self, ids: Iterable[str]) -> dict[str, PaperState]:
        ids = {each for each in ids if "\0" not in each}  # PostgreSQL refuses to search for what no paper can have
        if self._locked is not None and not ids <= self._locked:
            raise Conflict("a citation was added by another process after the rows were locked")
        query = (
            "SELECT id, revision, content_hash, retracted, version, body_revision, text_key, last_event FROM papers "
            "WHERE id IN {}"
        )
        return {
            key: PaperState(key, revision, content_hash, bool(retracted), *others)
            for key, revision, content_hash, retracted, *others in read_in(self._connection, query, ids)
        }

    def edges(self, citing: Iterable[str]) -> dict[str, dict[str, Edge]]:
        found: dict[str, dict[str, Edge]] = {}
        for row in read_in(self._connection, "SELECT * FROM edges WHERE citing IN {}", citing):
            found.setdefault(row.citing, {})[row.cited] = Edge(
                contribution_of(row) if row.present else None,
                row.revision,
                row.day,
                frozenset(split_keys(row.gone_keys)),
            )
        return found

    def facts(self, paper_id: str) -> Facts:
        return read_facts(self.bodies([paper_id])[paper_id])[0]

    def bodies(self, ids: Iterable[str], *, contexts: bool = True) -> dict[str, Publication]:
        """The newest publications. Reading them without contexts is faster."""
        found: dict[str, Publication] = {}
        query = "SELECT paper_id, publication FROM bodies WHERE paper_id IN {}"
        for paper_id, publication in read_in(self._connection, query, ids):
            message = publication_pb2.Publication.FromString(publication)
            if not contexts:
                del message.passages[:], message.masked_contexts[:]
            found[paper_id] = publication_from_message(message)
        return found

    def claims(self, aliases: Iterable[str]) -> dict[str, frozenset[str]]:
        found: dict[str, set[str]] = {}
        query = "SELECT alias, paper_id FROM claims WHERE alias IN {}"
        for name, paper_id in read_in(self._connection, query, aliases):
            found.setdefault(name, set()).add(paper_id)
        return {name: frozenset(papers) for name, papers in found.items()}

    def citing(self, cited: str) -> list[str]:
        table = schema.edges
        query = sa.select(table.c.citing).where(table.c.cited == cited, table.c.present)
        return list(self._connection.scalars(query))

    def claims_may_change(self) -> None:
        if not self._alone:
            raise NeedsAlone


def contribution_of(row: Any) -> Contribution:
    """The contribution in an edge's row, which must be present."""
    return Contribution(row.year, row.text_key, split_keys(row.context_keys))


def split_keys(joined: bytes) -> tuple[TextKey, ...]:
    return tuple(joined[at : at + KEY_BYTES] for at in range(0, len(joined), KEY_BYTES))


def write_batch(database: Database, connection: Connection, batch: Batch, views: Sequence[str]) -> None:
    """Writes all changes of a batch except those to the sums."""
    database.upsert(
        connection,
        schema.papers,
        [
            {
                "id": state.id,
                "revision": state.revision,
                "content_hash": state.content_hash,
                "retracted": state.retracted,
                "version": state.version,
                "body_revision": state.body_revision,
                "text_key": state.text,
                "last_event": state.last_event,
            }
            for state in (batch.papers[paper_id] for paper_id in sorted(batch.changed_papers))
        ],
    )
    database.upsert(
        connection,
        schema.bodies,
        [
            {"paper_id": paper_id, "publication": publication_to_message(body).SerializeToString()}
            for paper_id, body in sorted(batch.bodies.items())
        ],
    )
    database.upsert(
        connection,
        schema.edges,
        [_edge_row(citing, cited, batch.edges[citing][cited]) for citing, cited in sorted(batch.changed_edges)],
    )
    for alias, paper_id in sorted(batch.disclaimed):
        table = schema.claims
        connection.execute(sa.delete(table).where(table.c.alias == alias, table.c.paper_id == paper_id))
    database.insert_missing(
        connection,
        schema.claims,
        [{"alias": alias, "paper_id": paper_id} for alias, paper_id in sorted(batch.claimed)],
    )
    database.insert_missing(
        connection,
        schema.marks,
        [
            {
                "view": view,
                "kind": mark.kind.value,
                "object": mark.object_id,
                "version": mark.version,
                "event": mark.event_id,
                "bulk": mark.bulk,
            }
            for view in views
            for mark in batch.marks
        ],
    )


def _edge_row(citing: str, cited: str, edge: Edge) -> dict[str, object]:
    now = edge.contribution
    return {
        "citing": citing,
        "cited": cited,
        "revision": edge.revision,
        "present": now is not None,
        "year": now.year if now else 0,
        "day": edge.day,
        "text_key": now.text if now else b"",
        "context_keys": b"".join(now.contexts) if now else b"",
        "gone_keys": b"".join(sorted(edge.gone)),
    }
