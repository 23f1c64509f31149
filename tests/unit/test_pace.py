"""A service refuses calls once those in progress make one another slow."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from citewell.runtime.errors import Overloaded
from citewell.runtime.pace import Pace


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def learned(clock: Clock, took: float, **limits: float) -> Pace:
    """A pace that has seen calls take so long, one at a time."""
    pace = Pace("Recommend", **{"seconds": 1.0, "times": 4.0, **limits}, clock=clock)
    for _ in range(50):
        with pace.call(60.0):
            clock.now += took
    return pace


def taken(pace: Pace, seconds_left: float = 60.0) -> int:
    """How many calls it takes at the same time."""
    with ExitStack() as held:
        for number in range(100):
            try:
                held.enter_context(pace.call(seconds_left))
            except Overloaded:
                return number
    return 100


def test_it_takes_as_many_calls_as_are_answered_within_the_allowed_seconds() -> None:
    assert taken(learned(Clock(), 0.1)) == 10


def test_answers_that_come_in_bunches_do_not_look_cheaper_after_each_bunch() -> None:
    clock = Clock()
    pace = learned(clock, 0.025)
    for _ in range(40):
        with ExitStack() as bunch:
            for _ in range(10):
                bunch.enter_context(pace.call(60.0))
            clock.now += 0.25
    assert 36 <= taken(pace) <= 42


def test_on_a_slow_machine_it_takes_calls_up_to_a_multiple_of_what_one_takes() -> None:
    assert taken(learned(Clock(), 5.0)) == 4


def test_it_takes_no_call_that_cannot_be_answered_before_its_deadline() -> None:
    assert taken(learned(Clock(), 0.1), seconds_left=0.5) == 5


def test_the_first_calls_are_always_taken() -> None:
    assert taken(learned(Clock(), 5.0), seconds_left=0.1) == 2


def test_a_call_that_waited_for_a_lost_service_changes_nothing() -> None:
    clock = Clock()
    pace = learned(clock, 0.1)
    for _ in range(10):
        with pace.call(60.0) as call:
            clock.now += 5.0
            call.tells = False
    assert taken(pace) == 10


def test_a_refusal_says_when_to_come_again_and_changes_nothing() -> None:
    clock = Clock()
    pace = learned(clock, 0.1)
    with ExitStack() as held:
        for _ in range(10):
            held.enter_context(pace.call(60.0))
        with pytest.raises(Overloaded, match=r"about 1\.1 s and may take 1\.0 s") as refused:
            held.enter_context(pace.call(60.0))
        assert refused.value.retry_after_seconds == pytest.approx(0.55)
        assert pace.in_flight == 10
        clock.now += 1.0
    assert pace.in_flight == 0


def test_slow_answers_under_load_do_not_raise_what_is_allowed() -> None:
    """Else each overload would allow a longer queue than the one before."""
    clock = Clock()
    pace = learned(clock, 0.5)
    before = pace.undisturbed
    for _ in range(20):
        with ExitStack() as held:
            for _ in range(4):
                held.enter_context(pace.call(60.0))
            clock.now += 2.0
    assert pace.undisturbed == before
    assert taken(pace) == 4


def test_items_of_a_batch_count_but_are_never_refused() -> None:
    pace = learned(Clock(), 5.0)
    with ExitStack() as held:
        for _ in range(20):
            held.enter_context(pace.call(60.0, refuse=False))
        with pytest.raises(Overloaded):
            held.enter_context(pace.call(60.0))
