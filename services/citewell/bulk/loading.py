"""Writes the rows of a bulk build into an empty ledger, and starts a view that takes over when the index holds it.

The ledger is empty but for views. A killed load is repeated: rows that are there are left as they are. Until it is
finished no profiler may use the ledger, and the ledger remembers which build it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import sqlalchemy as sa

from citewell.bulk.manifest import Manifest, read_manifest
from citewell.profiler.ledger import schema
from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.lifecycle import BULK_LOAD, open_ledger, start_rebuild
from citewell.profiler.ledger.sums import read_models
from citewell.profiler.ledger.text_terms import open_lexicon
from citewell.profiler.ledger.views import PointForm, View, read_meta, read_views
from citewell.profiler.profiles import ProfileWeights
from citewell.profiler.settings import ProfilerSettings
from citewell.runtime.errors import FailedPrecondition
from citewell.runtime.settings import read_settings

ROWS_AT_ONCE = 2000
_LAST_EVENT = "bulk"


@dataclass(frozen=True, slots=True)
class _Named:
    """The model of a build."""

    model_id: str
    model_hash: str
    dimension: int
    former_hashes: frozenset[str] = frozenset()
    runtime: str = "bulk"


RowOf = Callable[[dict[str, Any]], dict[str, Any] | None]
"""Makes a row of the ledger; None for none."""
OnRows = Callable[[str, int, int], None]
"""(table, rows written, rows in all)"""


def load_bulk(
    database: Database, folder: Path, weights: ProfileWeights, form: PointForm, on_rows: OnRows = lambda *_: None
) -> tuple[Manifest, View]:
    """Loads a build into an empty ledger. Returns the view that serves it: at once if it is the ledger's first, else
    when the index holds all of it.

    Raises FailedPrecondition for a ledger that holds papers of other origin, ValueError for an unfinished build.
    """
    manifest = read_manifest(folder)
    database.migrate()
    open_lexicon(database)
    _claim(database, manifest, f"{manifest.model_hash} {folder.resolve()}")
    for table, part, rows in (
        (schema.text_vectors, "texts", lambda row: _vector(manifest, row)),
        (schema.text_terms, "texts", _terms),
        (schema.bodies, "papers", _body),
        (schema.papers, "papers", _paper),
        (schema.papers, "stubs", _stub),
        (schema.edges, "edges", _edge),
        (schema.year_sums, "sums", lambda row: _sums(manifest, row)),
        (schema.said_terms, "sums", _said),
    ):
        _write(database, table, folder / part, rows, on_rows)
    view = _view(database, manifest, weights, form)
    with database.writing() as connection:
        connection.execute(sa.delete(schema.meta).where(schema.meta.c.name == BULK_LOAD))
    return manifest, view


def load_configured(folder: Path, on_rows: OnRows) -> tuple[Manifest, View, str]:
    """The same into the ledger that CITEWELL_PROFILER__LEDGER_URL names, for a view with the profiler's settings.

    Returns also the ledger's name for messages.
    """
    settings = read_settings(ProfilerSettings)
    database = Database(settings.named_ledger_url)
    try:
        manifest, view = load_bulk(database, folder, settings.profile_weights, settings.point_form, on_rows)
        return manifest, view, database.name
    finally:
        database.close()


def _claim(database: Database, manifest: Manifest, mark: str) -> None:
    with database.writing(alone=True) as connection:
        if others := [model for model in read_models(connection) if model.hash != manifest.model_hash]:
            raise FailedPrecondition(
                f"the ledger has a view of encoder {others[0].name!r} (hash {others[0].hash}), the build is of "
                f"{manifest.model_name!r} ({manifest.model_hash}): build with that encoder, or take a new ledger",
                reason="ENCODER_MISMATCH",
                found=manifest.model_hash,
                expected=others[0].hash,
            )
        found = connection.scalar(sa.select(schema.meta.c.value).where(schema.meta.c.name == BULK_LOAD))
        if found == mark:
            return
        if found is not None:
            raise FailedPrecondition(
                f"the ledger holds a part of another build ({found}): finish that one first", reason="BULK_UNFINISHED"
            )
        if connection.execute(sa.select(schema.papers.c.id).limit(1)).first():
            raise FailedPrecondition(
                "the ledger holds papers: a bulk build fills an empty ledger only; load later papers without --bulk",
                reason="LEDGER_NOT_EMPTY",
            )
        database.insert_missing(connection, schema.meta, [{"name": BULK_LOAD, "value": mark}])


def _write(
    database: Database,
    table: sa.Table,
    folder: Path,
    row_of: Callable[[dict[str, Any]], dict[str, Any] | None],
    on_rows: OnRows,
) -> None:
    files = sorted(folder.glob("*.parquet"))
    count, done = sum(pq.ParquetFile(file).metadata.num_rows for file in files), 0
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(ROWS_AT_ONCE):
            told = batch.to_pylist()
            made = [row for row in map(row_of, told) if row is not None]
            with database.writing() as connection:
                database.insert_missing(connection, table, made)
            done += len(told)
            on_rows(table.name, done, count)


def _vector(manifest: Manifest, row: dict[str, Any]) -> dict[str, Any]:
    return {"model": manifest.model_hash, "text_key": row["key"], "vector": row["vector"]}


def _terms(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "text_key": row["key"],
        "terms": row["terms"],
        "title": row["title_counts"],
        "body": row["body_counts"],
    }


def _body(row: dict[str, Any]) -> dict[str, Any]:
    return {"paper_id": row["id"], "publication": row["publication"]}


def _paper(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": row["id"],
        "revision": row["revision"],
        "content_hash": row["content_hash"],
        "retracted": False,
        "version": 1,
        "body_revision": row["revision"],
        "text_key": row["text_key"],
        "last_event": _LAST_EVENT,
    }


def _stub(row: dict[str, Any]) -> dict[str, Any]:
    return _paper({"id": row["id"], "revision": 0, "content_hash": "", "text_key": b""}) | {"last_event": ""}


def _edge(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "citing": row["citing"],
        "cited": row["cited"],
        "revision": 1,
        "present": True,
        "year": row["year"],
        "day": row["day"],
        "text_key": row["text_key"],
        "context_keys": b"".join(row["contexts"]),
        "gone_keys": b"",
    }


def _sums(manifest: Manifest, row: dict[str, Any]) -> dict[str, Any] | None:
    if row["count"] is None:
        return None
    return {
        "model": manifest.model_hash,
        **{name: row[name] for name in ("cited", "year", "contexts", "contents", "count")},
    }


def _said(row: dict[str, Any]) -> dict[str, Any] | None:
    if not row["said_size"]:
        return None
    return {
        "cited": row["cited"],
        "year": row["year"],
        "run": 0,
        "size": row["said_size"],
        "terms": row["said_terms"],
        "counts": row["said_counts"],
    }


def _view(database: Database, manifest: Manifest, weights: ProfileWeights, form: PointForm) -> View:
    """A view that everything is marked for: the first of a new ledger, or a second one that takes over."""
    model = _Named(manifest.model_name, manifest.model_hash, manifest.dimension)
    with database.reading() as connection:
        serving = any(view.serving for view in read_views(connection))
        epoch = read_meta(connection, "epoch") if serving else ""
    if not serving:
        return open_ledger(database, model, weights, form=form, migrate=False, loading=True)
    request = f"bulk {manifest.model_hash} {epoch}"
    return start_rebuild(database, model, weights, request, form=form, switch_when_complete=True)
