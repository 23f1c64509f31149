"""Threads that compute stand behind event loops."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import Future

import pytest

from citewell.runtime.worker_threads import NICENESS, worker_pool


def _niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux threads have a niceness of their own")
def test_workers_and_threads_that_they_start_stand_behind_the_thread_of_the_event_loop() -> None:
    """A model starts threads of its own, which must stand behind event loops too."""
    told: Future[int] = Future()

    def start_another() -> int:
        another = threading.Thread(target=lambda: told.set_result(_niceness()))
        another.start()
        another.join(30)
        return _niceness()

    loop = _niceness()
    pool = worker_pool(1, "test")
    try:
        assert pool.submit(start_another).result(30) == min(19, loop + NICENESS)
        assert told.result(30) == min(19, loop + NICENESS)
        assert _niceness() == loop
    finally:
        pool.shutdown()


def test_each_worker_begins_as_told() -> None:
    begun = threading.Event()
    pool = worker_pool(1, "test", begun.set)
    try:
        assert pool.submit(begun.is_set).result(30)
    finally:
        pool.shutdown()


def test_workers_work_where_the_system_forbids_another_niceness(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", forbidden)
    pool = worker_pool(1, "test")
    try:
        assert pool.submit(sum, [1, 2]).result(30) == 3
    finally:
        pool.shutdown()
