"""Three times of what the services can answer: the rest is refused at once, and soon all is as before."""

from __future__ import annotations

from pathlib import Path

import pytest

from citewell.recommender.settings import RecommenderSettings
from tests.load.open_loop import NO_RETRY_INFO, OK, REFUSED, running_services
from tests.load.overload import overload

PAPERS = 200


@pytest.mark.parametrize("mix", ["retrieval", "reranked"])
async def test_what_is_taken_is_answered_in_time_and_the_rest_is_told_when_to_come_again(
    mix: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    long = request.config.getoption("--long")
    if mix == "reranked" and not long:
        return  # the same rule decides
    seconds, slower = (20.0, 2) if long else (3.0, 4)
    with running_services(PAPERS, tmp_path) as (stack, queries):
        measured = await overload(stack, queries, mix, seconds)
    told = measured.overloaded
    assert set(told.endings) == {OK, REFUSED}, f"{NO_RETRY_INFO} or failed: {told.endings}"
    assert measured.usual.answered == measured.usual.endings.total()
    # What is taken waits about as long as the service may let it wait, or as is usual on a slow machine. Without the
    # limit, the last requests would wait for twice the whole run. A short run on a crowded machine is noisy.
    allowed = RecommenderSettings().longest_queue_seconds
    usual = measured.usual.latencies.percentile(99)
    assert told.latencies.percentile(99) < slower * max(usual, allowed)
    # An overloaded service goes on answering.
    assert told.answered / told.seconds > measured.capacity / 3
    assert measured.recovered < 30.0
    assert measured.bytes_after < 1.2 * measured.bytes_before
