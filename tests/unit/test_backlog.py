"""How long the oldest unfinished item of a queue has waited."""

from __future__ import annotations

from citewell.runtime.backlog import MOST_SAMPLES, Backlog


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_oldest_unfinished_item_is_as_old_as_the_first_sample_that_had_it() -> None:
    clock = _Clock()
    backlog = Backlog(clock)
    backlog.sample("a", 10, 10)
    clock.now = 105.0
    assert backlog.seconds() == {"a": 0.0}
    backlog.sample("a", 12, 10)
    clock.now = 107.0
    backlog.sample("a", 20, 11)
    clock.now = 110.0
    assert backlog.seconds() == {"a": 5.0}, "item 11 arrived by the sample at 105"
    backlog.sample("a", 20, 12)
    assert backlog.seconds() == {"a": 3.0}, "what is left arrived by the sample at 107"
    backlog.sample("a", 20, 20)
    assert backlog.seconds() == {"a": 0.0}


def test_what_waits_at_the_first_sample_counts_from_then() -> None:
    clock = _Clock()
    backlog = Backlog(clock)
    backlog.sample("a", 5, 2)
    clock.now = 130.0
    assert backlog.seconds() == {"a": 30.0}
    backlog.keep({"b"})
    assert backlog.seconds() == {}


def test_memory_is_bounded_while_nothing_is_finished() -> None:
    clock = _Clock()
    backlog = Backlog(clock)
    for number in range(3 * MOST_SAMPLES):
        clock.now = 100.0 + number
        backlog.sample("a", number + 1, 0)
    assert len(backlog._arrivals["a"]) == MOST_SAMPLES
    assert backlog.seconds()["a"] == 3 * MOST_SAMPLES - 1
    backlog.sample("a", 3 * MOST_SAMPLES, 3 * MOST_SAMPLES)
    assert backlog.seconds()["a"] == 0.0
