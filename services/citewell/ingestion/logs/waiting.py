"""How much may wait for a log's disk or broker at a time."""

from __future__ import annotations

from collections.abc import Callable

from citewell.runtime.errors import Overloaded

MOST_EVENTS = 20_000
"""Each waiting event costs some memory beside its bytes."""
RETRY_SECONDS = 1.0


class Waiting:
    """Counts the appends that are accepted and not durable yet, and refuses those that exceed a limit.

    The memory held is a few times `most_bytes`: an event is also held as the message that it came in.
    """

    def __init__(self, most_bytes: int, most_events: int = MOST_EVENTS) -> None:
        self._most_bytes, self._most_events = most_bytes, most_events
        self.events = self.bytes = 0

    def admit(self, size: int) -> Callable[[], None]:
        """Counts an append of so many bytes until the function returned is called. Raises Overloaded.

        An append that comes alone is admitted, whatever its size.
        """
        if self.events and (self.events >= self._most_events or self.bytes + size > self._most_bytes):
            raise Overloaded(
                f"{self.events} events of {self.bytes} bytes already wait for the log, {size} more bytes are too many",
                retry_after_seconds=RETRY_SECONDS,
            )
        self.events += 1
        self.bytes += size
        counted = True

        def leave() -> None:
            nonlocal counted
            if counted:
                counted = False
                self.events -= 1
                self.bytes -= size

        return leave
