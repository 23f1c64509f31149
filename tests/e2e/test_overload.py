"""Three times of what the services can answer: the rest is refused at once, and soon all is as before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.load.open_loop import NO_RETRY_INFO, OK, REFUSED, running_services
from tests.load.overload import overload, report

PAPERS = 200
QUEUE_SECONDS = 1.0
"""How long the recommender lets calls wait, by default."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # Both kinds of requests go through the same limit; reranked ones take long to overload.
    metafunc.parametrize("mix", ["retrieval", "reranked"] if metafunc.config.getoption("--long") else ["retrieval"])


async def test_what_is_taken_is_answered_in_time_and_the_rest_is_told_when_to_come_again(
    mix: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    long = request.config.getoption("--long")
    seconds, slower = (20.0, 2) if long else (3.0, 4)
    with running_services(PAPERS, tmp_path) as (stack, queries):
        measured = await overload(stack, queries, mix, seconds)
    report(measured)
    told = measured.overloaded
    assert set(told.endings) == {OK, REFUSED}, f"{NO_RETRY_INFO} or failed: {told.endings}"
    assert measured.usual.answered == measured.usual.endings.total()
    # The recommender itself refuses, before a service behind it is overloaded.
    assert told.refusals["Recommend"] > told.refused / 2, told.refusals
    # What is taken waits about as long as the service lets it wait, or as is usual on a slow machine.
    usual = measured.usual.latencies.percentile(99)
    assert told.latencies.percentile(99) < slower * max(usual, QUEUE_SECONDS)
    # An overloaded service goes on answering.
    assert told.answered / told.seconds > measured.capacity / 3
    assert measured.recovered < 30.0
    assert measured.bytes_after < 1.2 * measured.bytes_before
