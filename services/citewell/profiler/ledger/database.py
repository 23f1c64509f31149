"""SQLite and PostgreSQL behind one interface: transactions that lock before reading, migrations, errors."""

from __future__ import annotations

import operator
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from citewell.runtime.errors import FailedPrecondition, StorageFull, Unavailable

MIGRATIONS = Path(__file__).parent / "migrations"

# Parameters in one statement; less than the limit of every supported database.
PARAMETERS = 900

_STRUCTURE_LOCK = 0x63697465  # key of a PostgreSQL advisory lock: the bytes of "cite"
_BUSY_SECONDS = 30.0


Rows = Sequence[Mapping[str, Any]]
Item = TypeVar("Item")


class Conflict(Unavailable):
    """Another process held a lock. Repeating the same transaction can succeed."""

    default_reason = "LEDGER_BUSY"


class Database:
    """The connections to one ledger. Thread-safe."""

    def __init__(self, url: str, *, create: bool = True) -> None:
        """Without `create`, a missing SQLite file is Unavailable instead of made."""
        try:
            parsed = make_url(url)
            self.is_sqlite = parsed.get_backend_name() == "sqlite"
            if self.is_sqlite:
                if parsed.database in (None, "", ":memory:"):
                    raise ArgumentError("it names no file")
                file = Path(str(parsed.database))
                self._engine = _sqlite_engine(parsed, file, create)
                self.name = f"sqlite:///{file.absolute()}"
                """The ledger's URL for messages."""
            elif parsed.get_backend_name() == "postgresql":
                self._engine = sa.create_engine(parsed.set(drivername="postgresql+psycopg"), pool_pre_ping=True)
                self.name = without_password(url)
            else:
                raise ArgumentError("no such database is known here")
        except (ArgumentError, ModuleNotFoundError) as error:
            raise FailedPrecondition(
                f"ledger_url {without_password(url)!r} cannot be used ({error}); expected sqlite:///path or postgresql://…",
                reason="LEDGER_URL",
            ) from None
        self._spelled: dict[tuple[str, str], Any] = {}
        # SQLite allows one writer. Threads queue for this lock, because SQLite's busy handler sleeps and is not fair.
        self._writer: AbstractContextManager[Any] = threading.Lock() if self.is_sqlite else nullcontext()

    @contextmanager
    def writing(self, *, alone: bool = False) -> Iterator[Connection]:
        """A write transaction. `alone` excludes all other write transactions, for changes to views and aliases."""
        with self._writer, _in_our_words(), self._engine.connect() as connection:
            connection = connection.execution_options(citewell_write=True)
            with connection.begin():
                if not self.is_sqlite:
                    shared = "" if alone else "_shared"
                    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock{shared}({_STRUCTURE_LOCK})")
                yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A read transaction. All its reads see the same state of the ledger."""
        with _in_our_words(), self._engine.connect() as connection:
            if not self.is_sqlite:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    def insert_missing(self, connection: Connection, table: sa.Table, rows: Rows) -> None:
        """Inserts the rows whose keys do not exist yet. Existing rows are not changed."""
        self._write(connection, (table.name, "missing"), lambda: self.insert(table).on_conflict_do_nothing(), rows)

    def upsert(self, connection: Connection, table: sa.Table, rows: Rows, where: Any = None) -> None:
        """Inserts whole rows. Replaces existing rows that have the same keys (and meet `where`)."""

        def statement() -> Any:
            insert = self.insert(table)
            changes = {column.name: insert.excluded[column.name] for column in table.c if not column.primary_key}
            keys = [column.name for column in table.primary_key]
            return insert.on_conflict_do_update(index_elements=keys, set_=changes, where=where)

        self._write(connection, (table.name, "upsert" if where is None else "upsert where"), statement, rows)

    def _write(
        self, connection: Connection, name: tuple[str, str], statement: Callable[[], sa.Insert], rows: Rows
    ) -> None:
        """Executes a statement for whole rows. It is compiled once and passed to the driver directly, because
        SQLAlchemy's compilation and row processing cost more than the execution.
        """
        if not rows:
            return
        if name not in self._spelled:
            self._spelled[name] = statement().compile(dialect=self._engine.dialect, column_keys=list(rows[0]))
        spelled = self._spelled[name]
        fixed = {key: value for key, value in spelled.params.items() if key not in rows[0]}  # parameters of `where`
        told: list[Any] = [{**row, **fixed} for row in rows] if fixed else list(rows)
        if spelled.positiontup:
            in_order = operator.itemgetter(*spelled.positiontup)
            told = [in_order(row) for row in told]
        connection.exec_driver_sql(spelled.string, told)

    def insert(self, table: sa.Table) -> Any:
        """An INSERT that supports ON CONFLICT. The syntax is the same in both databases."""
        return sqlite.insert(table) if self.is_sqlite else postgresql.insert(table)

    def close(self) -> None:
        self._engine.dispose()

    def revision(self) -> str | None:
        """The revision of the schema; None for an empty database."""
        with self.reading() as connection:
            return MigrationContext.configure(connection).get_current_revision()

    def is_migrated(self) -> bool:
        """Whether the schema is the current one of this citewell. Raises FailedPrecondition if it is a newer one."""
        known, found = known_revisions(), self.revision()
        _require_known(found, known)
        return found == known[0]

    def require_migrated(self) -> None:
        """Raises FailedPrecondition unless the schema is the current one of this citewell."""
        if not self.is_migrated():
            found, wanted = self.revision() or "none", known_revisions()[0]
            raise FailedPrecondition(
                f"the ledger has schema {found!r}, this citewell needs {wanted!r}; run `citewell migrate` as the "
                "owner of the tables",
                reason="SCHEMA_VERSION",
                found=found,
                known=wanted,
            )

    def migrate(self, revision: str = "head", *, grant_to: str = "") -> None:
        """Migrates the schema to a revision. Raises FailedPrecondition if a newer citewell created it.

        With `grant_to`, that PostgreSQL role may then read and write the rows, but not change the schema.
        """
        known, current = known_revisions(), self.revision()
        _require_known(current, known)
        wanted = known[0] if revision == "head" else revision
        if current == wanted and not grant_to:
            return
        with self.writing(alone=True) as connection:
            config = _scripts()[0]
            config.attributes["connection"] = connection
            current = MigrationContext.configure(connection).get_current_revision()
            down = revision == "base" or (current in known and revision in known[known.index(current) :])
            if current != wanted:
                (command.downgrade if down else command.upgrade)(config, revision)
            if grant_to:
                _grant(connection, grant_to)


def known_revisions() -> list[str]:
    """The revisions of the schema that this citewell knows, the newest first."""
    return [entry.revision for entry in _scripts()[1].walk_revisions()]


def _require_known(found: str | None, known: Sequence[str]) -> None:
    if found is not None and found not in known:
        raise FailedPrecondition(
            f"the ledger has schema {found!r}, this citewell knows up to {known[0]!r}; start the newer citewell",
            reason="SCHEMA_VERSION",
            found=found,
            known=known[0],
        )


def _grant(connection: Connection, role: str) -> None:
    """Lets a role use the rows of every table of the schema that the connection creates tables in."""
    if connection.dialect.name != "postgresql":
        raise FailedPrecondition("SQLite has no roles; only a PostgreSQL ledger can be granted", reason="LEDGER_URL")
    quoted = connection.dialect.identifier_preparer.quote_identifier
    namespace = quoted(str(connection.exec_driver_sql("SELECT current_schema()").scalar_one()))
    app = quoted(role)
    connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA {namespace} TO {app}")
    connection.exec_driver_sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {namespace} TO {app}")
    connection.exec_driver_sql(f"REVOKE INSERT, UPDATE, DELETE ON alembic_version FROM {app}")


def without_password(url: str) -> str:
    """The URL without its password, for logs and messages."""
    url = re.sub(r"(//[^:/@]*):.*@", r"\1:***@", url)
    return re.sub(r"(?i)(password=)[^&]*", r"\1***", url)


def _scripts() -> tuple[Config, ScriptDirectory]:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config, ScriptDirectory.from_config(config)


def select_in(
    connection: Connection, query: sa.Select[Any], column: sa.ColumnElement[Any], wanted: Iterable[Any]
) -> Iterator[sa.Row[Any]]:
    """The rows of the query whose column has one of the wanted values. There may be any number of values."""
    for some in chunks(sorted(set(wanted))):
        yield from connection.execute(query.where(column.in_(some))).all()


def read_in(connection: Connection, query: str, wanted: Iterable[Any], *others: Any) -> Iterator[Any]:
    """The rows of a query in plain SQL, for frequent reads: SQLAlchemy takes longer to write a list of values than the
    database takes to read their rows.

    The query has the wanted values as IN {}, and before them the other parameters as ?. SQLite answers 0 and 1 for
    booleans.
    """
    mark = parameter_mark(connection)
    query = query.replace("?", mark)
    for some in chunks(sorted(set(wanted))):
        values = f"({', '.join([mark] * len(some))})"
        yield from connection.exec_driver_sql(query.format(values), (*others, *some)).all()


def parameter_mark(connection: Connection) -> str:
    """How the database's driver writes a parameter in plain SQL."""
    return "?" if connection.dialect.positional else "%s"


def chunks(items: Sequence[Item], size: int = PARAMETERS) -> Iterator[Sequence[Item]]:
    """The items in slices of at most `size`."""
    for at in range(0, len(items), size):
        yield items[at : at + size]


def _sqlite_engine(url: sa.URL, file: Path, create: bool) -> sa.Engine:
    if create:
        file.parent.mkdir(parents=True, exist_ok=True)
    engine = sa.create_engine(url, connect_args={"timeout": _BUSY_SECONDS})

    @sa.event.listens_for(engine, "do_connect")
    def require_file(*_: object) -> None:
        if not create and not file.is_file():
            raise Unavailable(f"there is no file {file}", stage="ledger")

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, _: object) -> None:
        connection.isolation_level = None  # transactions are begun explicitly, see below
        for pragma in (
            "page_size = 8192",  # a row of sums takes 6 KB at 384 dimensions
            "journal_mode = WAL",
            # Sync every commit before it is acknowledged, because the log may delete an event once it is applied. In
            # WAL mode, NORMAL syncs at checkpoints only: a power cut could undo the commits of the last seconds.
            "synchronous = FULL",
            "cache_size = -65536",
            "temp_store = MEMORY",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("citewell_write")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


@contextmanager
def _in_our_words() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        raise _translated(error) from error


def _translated(error: DBAPIError) -> Exception:
    words, state = str(error.orig), getattr(error.orig, "sqlstate", None)
    if state in ("40P01", "40001") or "database is locked" in words:
        return Conflict(words)
    if state == "53100" or "disk is full" in words or "disk I/O error" in words:
        return StorageFull(f"the ledger's disk is full: nothing of this call was written ({words})")
    if state == "42501":
        return FailedPrecondition(
            f"the role in ledger_url may not do this ({words.splitlines()[0]}); `citewell migrate` runs as the owner "
            "of the tables and grants the profilers' role with --grant-to",
            reason="LEDGER_URL",
        )
    if "file is not a database" in words or "malformed" in words:
        return FailedPrecondition(f"the ledger's file is damaged or no ledger ({words})", reason="LEDGER_DAMAGED")
    if error.connection_invalidated or (state or "").startswith(("08", "57")) or "unable to open" in words:
        return Unavailable(f"the ledger's database does not answer: {words.splitlines()[0]}", stage="ledger")
    if isinstance(error, sa.exc.OperationalError) and state is None:
        return Unavailable(f"the ledger's database does not answer: {words.splitlines()[0]}", stage="ledger")
    return error
