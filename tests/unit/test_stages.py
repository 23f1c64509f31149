"""The stages of a query: what a cancellation does."""

from __future__ import annotations

import asyncio
import math

import pytest

from citewell.recommender.queries import Options
from citewell.recommender.stages import Run
from citewell.scholarly.queries import Query


async def test_a_cancellation_that_comes_together_with_the_result_is_not_swallowed() -> None:
    result: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def work(_: float) -> int:
        return await result

    run = Run(Query("a TARGETCIT"), Options(), lambda: 10.0, lambda: math.nan)
    task = asyncio.create_task(run.stage("search", work))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    result.set_result(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
