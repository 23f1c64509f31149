"""Pools of threads that compute or wait for a database. Event loops have priority over them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

# Added to the niceness of worker threads and of all that they start, such as a model's own threads. An event loop
# needs little of a core, but soon: behind a dozen threads that compute it takes seconds even to refuse a call.
NICENESS = 5
_LOWEST = 19


def worker_pool(threads: int | None, name: str, begin: Callable[[], object] = lambda: None) -> ThreadPoolExecutor:
    """A pool of worker threads; None = as many as asyncio's own. Each calls `begin` first."""

    def start() -> None:
        _yield_to_event_loops()
        begin()

    return ThreadPoolExecutor(threads, name, initializer=start)


def _yield_to_event_loops() -> None:
    if sys.platform != "linux":  # elsewhere threads have no niceness of their own
        return
    thread = threading.get_native_id()
    with suppress(OSError):  # a sandbox that forbids it costs promptness, not the service
        niceness = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, min(_LOWEST, niceness + NICENESS))
