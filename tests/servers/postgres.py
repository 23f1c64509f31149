"""A throw-away PostgreSQL cluster on this machine."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psycopg

from tests.servers.missing import missing
from tests.servers.processes import end, free_ports, tail, wait_until


def _binaries() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        missing("no PostgreSQL server here: install it (Debian: apt-get install postgresql)")
    return (found[-1] if found else Path(str(on_path))).parent


def _owner() -> pwd.struct_passwd | None:
    """The user to run PostgreSQL as when the tests run as root, which it refuses."""
    if os.getuid() != 0:
        return None
    user = next((user for user in pwd.getpwall() if user.pw_name in ("postgres", "nobody")), None)
    if user is None:
        missing("PostgreSQL does not run as root, and there is neither a user postgres nor nobody: run as a user")
    return user


class PostgresServer:
    """One cluster that keeps its folder and port across restarts. Each test gets a database of its own."""

    def __init__(self, host: str = "127.0.0.1", inside: Sequence[str] = ()) -> None:
        """`inside` is the command that runs a program on that host, where it is not this one."""
        self._host, self._inside = host, inside
        self._binaries = _binaries()
        self._owner = _owner()
        # Not below pytest's folders, which other users cannot read.
        self._folder = Path(tempfile.mkdtemp(prefix="citewell-postgres-"))
        if self._owner:
            os.chown(self._folder, self._owner.pw_uid, self._owner.pw_gid)
        self._data, self._log = self._folder / "data", self._folder / "server.log"
        (self.port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._names = (f"test_{number}" for number in itertools.count(1))

    def start(self, seconds: float = 60.0) -> Self:
        """Returns once the server answers; the first start creates the cluster."""
        if not self._data.exists():
            command: list[str | Path] = [
                *self._as_owner(),
                self._binaries / "initdb",
                "-D",
                self._data,
                "-U",
                "citewell",
                "-A",
                "trust",
                "-E",
                "UTF8",
            ]
            command += ["--no-sync", "--locale=C"]
            done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
            if done.returncode:
                raise RuntimeError(f"initdb failed: {done.stderr}")
            with (self._data / "pg_hba.conf").open("a") as access:
                access.write(f"host all all {self._host}/24 trust\n")
        wait_until(self._starts, "PostgreSQL answers", seconds)
        return self

    def stop(self) -> None:
        """Stops it cleanly: disconnects clients and rolls back open transactions."""
        self._end(signal.SIGINT)

    def restart(self) -> None:
        """Stops it at once, without a checkpoint, and starts it again: it replays its log."""
        self._end(signal.SIGQUIT)
        self.start()

    def kill(self) -> None:
        """Kills every process of the server with SIGKILL."""
        if self._process is not None:
            process, self._process = self._process, None
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def fresh_database(self) -> str:
        """The SQLAlchemy address of a new, empty database."""
        name = next(self._names)
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return f"postgresql+psycopg://citewell@{self._host}:{self.port}/{name}"

    def address(self, database: str, port: int | None = None) -> str:
        """The psycopg address of a database, optionally through a proxy's port."""
        return f"postgresql://citewell@{self._host}:{port or self.port}/{database}"

    def _as_owner(self) -> list[str]:
        """The command that runs a program as the owner of the cluster.

        Popen(user=…) would do without, but then Python forks instead of using vfork, and gRPC's fork handlers start
        threads in the child, which sometimes crash it.
        """
        if self._owner is None:
            return []
        return ["setpriv", f"--reuid={self._owner.pw_uid}", f"--regid={self._owner.pw_gid}", "--clear-groups"]

    def _starts(self) -> bool:
        # After SIGKILL the shared memory may remain for a moment. The server then ends at once and is started again.
        if self._process is None or self._process.poll() is not None:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [*self._inside, *self._as_owner(), f"{self._binaries}/postgres", "-D", str(self._data),
                     "-p", str(self.port), "-k", str(self._folder),
                     "-c", f"listen_addresses={self._host}", "-c", "fsync=off", "-c", "max_connections=200"],
                    stdout=log, stderr=log, cwd="/", start_new_session=True,
                )  # fmt: skip
        try:
            psycopg.connect(self.address("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.send_signal(how)
            end(process, self._log)

    def log(self) -> str:
        return tail(self._log)
