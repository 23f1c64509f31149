"""One at a time, in the order of priority."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from citewell.profiler.turns import Turns


def waits_for(turns: Turns, count: int) -> None:
    """Returns when this many wait for their turn."""
    end = time.monotonic() + 30
    while turns.waiting < count:
        assert time.monotonic() < end
        time.sleep(0.001)


def beside(turns: Turns, calls: list[Callable[[], None]]) -> list[threading.Thread]:
    """Starts a thread for each call, once the earlier ones wait."""
    threads = []
    for call in calls:
        threads.append(threading.Thread(target=call))
        threads[-1].start()
        waits_for(turns, len(threads))
    return threads


def taking(turns: Turns, had: list[str]) -> Callable[[str, int], Callable[[], None]]:
    """A maker of calls that take a turn and then add their name to `had`."""

    def take(name: str, left: int) -> Callable[[], None]:
        def call() -> None:
            with turns.turn(left):
                had.append(name)

        return call

    return take


def test_least_left_goes_first_and_among_equals_who_came_first() -> None:
    turns = Turns(clock=lambda: 0.0)
    had: list[str] = []
    take = taking(turns, had)
    with turns.turn(1):
        threads = beside(turns, [take("load", 900), take("first", 20), take("second", 20), take("query", 2)])
        assert had == []  # one at a time
    for thread in threads:
        thread.join(30)
    assert had == ["query", "first", "second", "load"]


def test_a_long_job_that_has_waited_goes_before_short_ones_that_come_later() -> None:
    now = 0.0
    turns = Turns(clock=lambda: now)
    had: list[str] = []
    take = taking(turns, had)

    def later(name: str, left: int) -> Callable[[], None]:
        def call() -> None:
            nonlocal now
            now = 1.0
            take(name, left)()

        return call

    with turns.turn(1):
        threads = beside(turns, [take("long", 300), take("short", 20), later("late and short", 20)])
    for thread in threads:
        thread.join(30)
    assert had == ["short", "long", "late and short"]


def test_as_many_have_a_turn_as_there_are_places() -> None:
    turns = Turns(2)
    inside, leave = threading.Barrier(3), threading.Event()

    def hold() -> None:
        with turns.turn(1):
            inside.wait(30)
            assert leave.wait(30)

    threads = [threading.Thread(target=hold) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.wait(30)  # both are running
    had = threading.Event()

    def take() -> None:
        with turns.turn(1):
            had.set()

    third = beside(turns, [take])
    assert not had.is_set()
    leave.set()
    assert had.wait(30)
    for thread in [*threads, *third]:
        thread.join(30)


def test_a_turn_that_fails_is_given_back() -> None:
    turns = Turns()
    with pytest.raises(RuntimeError), turns.turn(1):
        raise RuntimeError
    with turns.turn(1):
        pass
