"""A SQLite connection that never blocks the event loop."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from citewell.runtime.errors import FailedPrecondition, StorageFull, Unavailable

BUSY_SECONDS = 5.0
"""How long a transaction waits for the write lock before it fails as Unavailable."""

T = TypeVar("T")


class Database:
    """One connection with a thread of its own. Reports SQLite's errors as errors of our tree."""

    def __init__(self, path: Path, *, synchronous: str) -> None:
        self._path, self._synchronous = path, synchronous
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"log-{synchronous.lower()}")
        self._connection: sqlite3.Connection | None = None

    async def run(self, work: Callable[[sqlite3.Connection], T], *, write: bool = False) -> T:
        """The work's result. With write = True the work is one transaction that holds the write lock from its start."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, work, write)

    def _run(self, work: Callable[[sqlite3.Connection], T], write: bool) -> T:
        try:
            connection = self._connection = self._connection or self._connect()
            if not write:
                return work(connection)
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = work(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # a full disk may have rolled it back already
                    connection.execute("ROLLBACK")
                raise
            return result
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise StorageFull("the disk that holds the log is full") from error
            raise Unavailable(f"the log's file cannot be used now: {error}", reason="LOG_UNAVAILABLE") from error
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise
            raise FailedPrecondition(
                f"{self._path} is damaged or no log ({error}): restore it from a backup", reason="LOG_UNREADABLE"
            ) from error

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=32
        )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        return connection

    async def close(self) -> None:
        def close() -> None:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

        await asyncio.get_running_loop().run_in_executor(self._thread, close)
        self._thread.shutdown(wait=False)
