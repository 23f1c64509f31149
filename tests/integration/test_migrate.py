"""`citewell migrate`: which ledger it takes; the owner of the tables, and a profiler whose role may not change them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from citewell.commands.stack import Stack, StackError, choose_ports
from citewell.profiler.ledger.database import Database, known_revisions, without_password
from tests.servers.postgres import PostgresServer
from tests.tiny_models import write_tiny_encoder

NEWEST = known_revisions()[0]


@pytest.fixture
def ledger(postgres_server: PostgresServer) -> Iterator[dict[str, str]]:
    """The addresses of an empty ledger for each role. `ledger_owner` may create tables, `ledger_app` may not."""
    url = postgres_server.fresh_database()
    name = url.rpartition("/")[2]
    with psycopg.connect(postgres_server.address(name), autocommit=True) as admin:
        for role in ("ledger_owner", "ledger_app"):
            admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
        admin.execute("GRANT CREATE, USAGE ON SCHEMA public TO ledger_owner")
    roles = ("ledger_owner", "ledger_app")
    yield {role: f"postgresql://{role}@127.0.0.1:{postgres_server.port}/{name}" for role in roles}
    with psycopg.connect(postgres_server.address(name), autocommit=True) as admin:
        for role in roles:
            admin.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(role)))


def migrate(url: str, *options: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command, in a folder; without a URL, the setting is not there."""
    return subprocess.run(
        [sys.executable, "-m", "citewell.cli", "migrate", *options],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        env={**os.environ, **({"CITEWELL_PROFILER__LEDGER_URL": url} if url else {})},
    )


@pytest.mark.parametrize(
    ("url", "options", "code", "told"),
    [
        ("", (), 2, "CITEWELL_PROFILER__LEDGER_URL is not set"),
        ("", ("--check",), 2, "CITEWELL_PROFILER__LEDGER_URL is not set"),
        ("", ("--data", "missing"), 2, "--data is 'missing', which is no folder"),
        ("sqlite://", (), 1, "ledger_url 'sqlite://' cannot be used (it names no file)"),
        ("sqlite:///sub/ledger.sqlite", ("--check",), 1, "{here}/sub/ledger.sqlite: there is no file"),
        ("sqlite:///sub/ledger.sqlite", ("--grant-to", "app"), 1, "{here}/sub/ledger.sqlite: SQLite has no roles"),
    ],
)
def test_it_makes_no_ledger_that_nobody_named(
    tmp_path: Path, url: str, options: tuple[str, ...], code: int, told: str
) -> None:
    refused = migrate(url, *options, cwd=tmp_path)
    assert refused.returncode == code
    assert told.format(here=tmp_path) in refused.stderr
    assert "--grant-to" in options or list(tmp_path.iterdir()) == []


def test_it_says_which_ledger_it_migrated(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for url, options, file in (
        ("sqlite:///own.sqlite", (), "own.sqlite"),
        ("", ("--data", "data"), "data/ledger.sqlite"),
        ("sqlite:///own.sqlite", ("--data", "data"), "data/ledger.sqlite"),
    ):
        done = migrate(url, *options, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"the ledger sqlite:///{tmp_path / file} ")
        assert (tmp_path / file).is_file()
    assert done.stdout.endswith(f"has schema {NEWEST}\n")


@pytest.fixture
def profiler(ledger: dict[str, str], tmp_path: Path) -> Iterator[Stack]:
    """A profiler and its index; the profiler is told to leave the schema alone."""
    settings = {
        "CITEWELL_PROFILER__LEDGER_URL": ledger["ledger_app"],
        "CITEWELL_PROFILER__MIGRATE": "false",
        "CITEWELL_PROFILER__ENCODER": str(write_tiny_encoder(tmp_path / "encoder")),
    }
    stack = Stack(tmp_path, choose_ports(0), cluster=True, settings=settings)
    yield stack
    stack.stop()


def test_the_owner_migrates_and_a_role_without_ddl_serves(ledger: dict[str, str], profiler: Stack) -> None:
    done = migrate(ledger["ledger_owner"], "--grant-to", "ledger_app")
    shown = without_password(ledger["ledger_owner"])
    assert (done.returncode, done.stdout.strip()) == (
        0,
        f"the ledger {shown} went from schema none to schema {NEWEST}; granted to ledger_app",
    ), done.stderr
    again = migrate(ledger["ledger_owner"])
    assert again.stdout.strip() == f"the ledger {shown} has schema {NEWEST}"

    with psycopg.connect(ledger["ledger_app"]) as app, pytest.raises(psycopg.errors.InsufficientPrivilege):
        app.execute("CREATE TABLE public.other (x int)")
    with psycopg.connect(ledger["ledger_app"]) as app, pytest.raises(psycopg.errors.InsufficientPrivilege):
        app.execute("UPDATE alembic_version SET version_num = '0'")

    profiler.start(["index", "ingestion", "profiler"])
    profiler.wait(["index", "ingestion", "profiler"])
    event = json.dumps({"publication": {"paper_id": "p", "revision": 1, "title": "On roles"}}) + "\n"
    published = subprocess.run(
        [sys.executable, "-m", "citewell.cli", "publish", "--address", profiler.addresses["ingestion"]],
        input=event,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert published.returncode == 0, published.stderr
    checked = subprocess.run(
        [sys.executable, "-m", "citewell.cli", "doctor", "profiles", "--address", profiler.addresses["profiler"]],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (checked.returncode, checked.stdout.strip()) == (0, "1 checked, 0 faults, 0 repaired"), checked.stderr


@pytest.mark.parametrize("project", ["true", "false"])
def test_a_profiler_refuses_an_old_schema(ledger: dict[str, str], profiler: Stack, project: str) -> None:
    owner = Database(ledger["ledger_owner"])
    owner.migrate("0001", grant_to="ledger_app")
    owner.close()
    profiler.settings = {**profiler.settings, "CITEWELL_PROFILER__PROJECT": project}
    profiler.start(["profiler"])
    with pytest.raises(StackError, match=f"'0001', this citewell needs '{NEWEST}'; run `citewell migrate`"):
        profiler.wait(["profiler"])


@pytest.mark.parametrize(("project", "may_migrate"), [("true", "true"), ("false", "false")])
def test_a_profiler_refuses_a_newer_schema(
    ledger: dict[str, str], profiler: Stack, project: str, may_migrate: str
) -> None:
    assert migrate(ledger["ledger_owner"], "--grant-to", "ledger_app").returncode == 0
    with psycopg.connect(ledger["ledger_owner"]) as owner:
        owner.execute("UPDATE alembic_version SET version_num = '9999'")
    told = {"CITEWELL_PROFILER__PROJECT": project, "CITEWELL_PROFILER__MIGRATE": may_migrate}
    profiler.settings = {**profiler.settings, **told}
    profiler.start(["profiler"])
    with pytest.raises(StackError, match=f"'9999', this citewell knows up to '{NEWEST}'; start the newer citewell"):
        profiler.wait(["profiler"], seconds=30)
    refused = migrate(ledger["ledger_owner"])
    assert refused.returncode == 1
    assert "start the newer citewell" in refused.stderr


def test_check_waits_for_the_migration_of_another(ledger: dict[str, str]) -> None:
    owner = Database(ledger["ledger_owner"])
    owner.migrate("0001", grant_to="ledger_app")
    owner.close()
    old = migrate(ledger["ledger_app"], "--check")
    assert old.returncode == 1
    assert f"'0001', this citewell needs '{NEWEST}'" in old.stderr
    waiting: list[subprocess.CompletedProcess[str]] = []
    waits = threading.Thread(target=lambda: waiting.append(migrate(ledger["ledger_app"], "--check", "--wait", "50")))
    waits.start()
    assert migrate(ledger["ledger_owner"], "--grant-to", "ledger_app").returncode == 0
    waits.join()
    assert waiting[0].returncode == 0, waiting[0].stderr


def test_a_role_that_may_not_change_the_schema_is_told_so(ledger: dict[str, str]) -> None:
    refused = migrate(ledger["ledger_app"])
    assert refused.returncode == 1
    assert "permission denied" in refused.stderr
    assert "Traceback" not in refused.stderr
