"""Calls that wait for one another's transactions share one, and get only their own errors."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from citewell.profiler.ledger.grouping import Groups


class Work:
    """Doubles numbers, one group at a time. The first group runs until it is released; 13 always fails."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.begun, self.released = threading.Event(), threading.Event()

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.groups.append(list(items))
        self.begun.set()
        assert self.released.wait(10)
        if 13 in items:
            raise ValueError("13")
        return [2 * item for item in items]


def run_behind_the_first(work: Work, groups: Groups[int, int], items: Sequence[int]) -> list[int | Exception]:
    """The answers of callers that all arrive while a first group, of the item 1, is running."""

    def call(item: int) -> int | Exception:
        try:
            return groups.run(item)
        except ValueError as error:
            return error

    with ThreadPoolExecutor(1 + len(items)) as threads:
        first = threads.submit(call, 1)
        assert work.begun.wait(10)
        others = [threads.submit(call, item) for item in items]
        while len(groups._waiting) < len(items):
            pass
        work.released.set()
        assert first.result(10) == 2
        return [other.result(10) for other in others]


def test_callers_that_wait_share_the_next_group() -> None:
    work = Work()
    groups = Groups(work, lambda item: 1, most=10)
    assert run_behind_the_first(work, groups, [2, 3, 4]) == [4, 6, 8]
    assert [sorted(group) for group in work.groups] == [[1], [2, 3, 4]]


def test_a_group_is_not_larger_than_allowed() -> None:
    work = Work()
    groups = Groups(work, lambda item: 1, most=2)
    assert run_behind_the_first(work, groups, [2, 3, 4]) == [4, 6, 8]
    assert [len(group) for group in work.groups] == [1, 2, 1]


def test_an_item_that_fails_fails_alone() -> None:
    work = Work()
    groups = Groups(work, lambda item: 1, most=10)
    answers = run_behind_the_first(work, groups, [2, 13, 4])
    assert answers[::2] == [4, 8]
    assert isinstance(answers[1], ValueError)


def test_a_lone_item_is_not_run_twice() -> None:
    work = Work()
    work.released.set()
    with pytest.raises(ValueError, match="13"):
        Groups(work, lambda item: 1, most=10).run(13)
    assert work.groups == [[13]]
