"""The limits on events that wait for a log."""

import pytest

from citewell.ingestion.logs.waiting import Waiting
from citewell.runtime.errors import Overloaded


def test_events_and_bytes_are_counted_until_they_leave() -> None:
    waiting = Waiting(most_bytes=100, most_events=3)
    leave = [waiting.admit(40), waiting.admit(40)]
    with pytest.raises(Overloaded, match="2 events of 80 bytes"):
        waiting.admit(21)
    leave.append(waiting.admit(20))
    with pytest.raises(Overloaded, match="3 events"):
        waiting.admit(0)
    for each in leave:
        each()
        each()  # leaving twice has an effect once
    assert (waiting.events, waiting.bytes) == (0, 0)


def test_an_event_that_comes_alone_is_admitted_whatever_its_size() -> None:
    waiting = Waiting(most_bytes=100)
    leave = waiting.admit(1000)
    with pytest.raises(Overloaded) as caught:
        waiting.admit(1)
    assert caught.value.retry_after_seconds > 0
    leave()
    waiting.admit(1)
