"""`citewell migrate`: the schema of the ledger that CITEWELL_PROFILER__LEDGER_URL or --data names."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from citewell.commands.failing import WRONG_USAGE, fail, told
from citewell.commands.stack import ledger_of
from citewell.profiler.ledger.database import Database, known_revisions
from citewell.profiler.settings import ProfilerSettings
from citewell.runtime.errors import CitewellError, Unavailable
from citewell.runtime.settings import read_settings

_POLL_SECONDS = 1.0


def migrate(
    data: Annotated[
        Path | None,
        typer.Option("--data", help="The folder that `up` was given: its ledger, not CITEWELL_PROFILER__LEDGER_URL."),
    ] = None,
    grant_to: Annotated[
        str,
        typer.Option("--grant-to", help="PostgreSQL role of the profilers. It may then read and write all rows."),
    ] = "",
    check: Annotated[bool, typer.Option("--check", help="Change nothing; end with code 1 on another schema.")] = False,
    wait: Annotated[
        float,
        typer.Option("--wait", min=0, help="How many seconds to wait for the database; with --check for the schema."),
    ] = 0.0,
) -> None:
    """Brings the tables of the ledger that CITEWELL_PROFILER__LEDGER_URL names to the schema of this version.

    Run it as the role that owns the tables, before the profilers of this version start. Profilers whose role may not
    change the schema are set to CITEWELL_PROFILER__MIGRATE=false.
    """
    if check and grant_to:
        fail("--check changes nothing, so it takes no --grant-to", WRONG_USAGE)
    database = Database(_chosen(data), create=not check)
    try:
        before = _answer(database, time.monotonic() + wait, current=check)
        if check:
            database.require_migrated()
        else:
            database.migrate(grant_to=grant_to)
    except CitewellError as error:
        fail(f"the ledger {database.name}: {told(error)}")
    finally:
        database.close()
    wanted = known_revisions()[0]
    done = "has" if before == wanted else f"went from schema {before or 'none'} to"
    typer.echo(f"the ledger {database.name} {done} schema {wanted}{f'; granted to {grant_to}' if grant_to else ''}")


def _chosen(data: Path | None) -> str:
    """The URL of the ledger that somebody named: the setting's default would be a new file in the current folder."""
    if data is None:
        return read_settings(ProfilerSettings).named_ledger_url
    if not data.is_dir():
        fail(f"--data is '{data}', which is no folder", WRONG_USAGE)
    return ledger_of(data)


def _answer(database: Database, end: float, *, current: bool) -> str | None:
    """The schema's revision. Until `end`, waits for the database, and with `current` for this version's schema."""
    while True:
        try:
            if not current or database.is_migrated() or time.monotonic() >= end:
                return database.revision()
        except Unavailable:
            if time.monotonic() >= end:
                raise
        time.sleep(_POLL_SECONDS)
