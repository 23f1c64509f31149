"""Group commit: callers that arrive while a transaction runs share the next one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class _Turn(Generic[Item, Answer]):
    """One caller's item, and its answer or error once there is one."""

    def __init__(self, item: Item) -> None:
        self.item = item
        self.done = False
        self._answer: Answer | None = None
        self._error: Exception | None = None

    def answered(self, answer: Answer) -> None:
        self._answer, self.done = answer, True

    def failed(self, error: Exception) -> None:
        self._error, self.done = error, True

    def result(self) -> Answer:
        if self._error is not None:
            raise self._error
        return self._answer  # type: ignore[return-value]  # None only where it is the answer


class Groups(Generic[Item, Answer]):
    """Runs `work` for several callers at once, one group after the other. Thread-safe.

    If a group of several fails, each of its items is run alone. So a caller gets only errors of its own item.
    """

    def __init__(self, work: Callable[[Sequence[Item]], Sequence[Answer]], size: Callable[[Item], int], most: int):
        """A group holds items of at most `most` in `size` together, or a single larger one."""
        self._work, self._size, self._most = work, size, most
        self._waiting: deque[_Turn[Item, Answer]] = deque()
        self._arriving, self._running = threading.Lock(), threading.Lock()

    def run(self, item: Item) -> Answer:
        """The answer for this item, once its group has run."""
        turn = _Turn[Item, Answer](item)
        with self._arriving:
            self._waiting.append(turn)
        while not turn.done:
            with self._running:
                if not turn.done:
                    self._run(self._next())
        return turn.result()

    def _next(self) -> list[_Turn[Item, Answer]]:
        with self._arriving:
            group = [self._waiting.popleft()]
            size = self._size(group[0].item)
            while self._waiting and (size := size + self._size(self._waiting[0].item)) <= self._most:
                group.append(self._waiting.popleft())
            return group

    def _run(self, group: Sequence[_Turn[Item, Answer]]) -> None:
        try:
            answers = self._work([turn.item for turn in group])
        except Exception as error:
            if len(group) == 1:
                group[0].failed(error)
                return
            for turn in group:
                self._run([turn])
            return
        for turn, answer in zip(group, answers, strict=True):
            turn.answered(answer)
