"""Simulates a power cut: of a process's files only the synced contents remain.

A small library (synced.c, loaded with LD_PRELOAD) copies what fsync, fdatasync and msync sync. Contents that were
never synced are left as zeros. Its limits: metadata (names, renames, deletions, sizes) counts as durable at once, as
journalling file systems commit it in order; writes with O_SYNC or O_DIRECT are not seen.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.servers.missing import missing

_AT_EMPTY_PATH, _STATX_BTIME = 0x1000, 0x800


class PowerCut:
    """Follows what the processes started with `environment` sync below one folder."""

    def __init__(self, root: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            missing("no C compiler here: install one (Debian: apt-get install gcc libc6-dev)")
        self._root = root.resolve()
        # On the same disk: birth times are needed to tell files with a reused inode number apart.
        self._work = Path(tempfile.mkdtemp(prefix="citewell-synced-"))
        self._copies = self._work / "copies"
        self._copies.mkdir()
        library = self._work / "synced.so"
        source = Path(__file__).with_name("synced.c")
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, source], check=True)
        self.environment = {
            "LD_PRELOAD": str(library),
            "SYNCED_ROOT": str(self._root),
            "SYNCED_COPIES": str(self._copies),
        }

    def leave(self, left: Path) -> None:
        """Builds a new folder with the remains of the root. Call it after the processes were killed."""
        for folder, _, names in os.walk(self._root):
            target = left / Path(folder).relative_to(self._root)
            target.mkdir(parents=True)
            for name in names:
                original = Path(folder) / name
                synced = self._copies / _identity(original)
                if synced.exists():
                    subprocess.run(["cp", "--sparse=always", synced, target / name], check=True)
                else:
                    (target / name).touch()
                os.truncate(target / name, original.stat().st_size)

    def close(self) -> None:
        shutil.rmtree(self._work)


class _Time(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_uint32), ("_", ctypes.c_int32)]


class _Statx(ctypes.Structure):
    _fields_ = [
        ("_head", ctypes.c_uint8 * 32),
        ("inode", ctypes.c_uint64),
        ("_sizes", ctypes.c_uint64 * 3),
        ("_accessed", _Time),
        ("born", _Time),
        ("_rest", ctypes.c_uint8 * 160),
    ]


def _identity(path: Path) -> str:
    """The name that synced.c gives to the copy of this file. Python's os.stat does not tell birth times on Linux."""
    found = _Statx()
    library = ctypes.CDLL(None, use_errno=True)
    if library.statx(-100, os.fsencode(path), 0, _STATX_BTIME | 0x7FF, ctypes.byref(found)):
        raise OSError(ctypes.get_errno(), f"statx of {path}")
    return f"{found.inode}-{found.born.seconds}-{found.born.nanoseconds}"
