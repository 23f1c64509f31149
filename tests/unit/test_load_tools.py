"""The tools of the load tests find a knee that is there, and draw what they found."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from tests.load.knee import GROWTH, Step, find_knee, table
from tests.load.latencies import Latencies
from tests.load.picture import latency_picture


def service_with_knee(capacity: float) -> object:
    """Measures a service whose answers queue beyond this rate."""

    async def measure(rate: float) -> Step:
        p99 = 0.1 if rate <= capacity else 5.0
        return Step(rate, min(rate, capacity), p99 / 2, p99, 0.0)

    return measure


@pytest.mark.parametrize("capacity", [3.0, 17.0, 140.0])
async def test_the_knee_is_found_within_a_bisected_step(capacity: float) -> None:
    knee = await find_knee(service_with_knee(capacity), first=2.0)  # type: ignore[arg-type]
    assert knee.rate <= capacity
    assert knee.rate > capacity / (1 + (GROWTH - 1) / 4)
    assert "**knee**" in table(knee)


async def test_a_service_that_refuses_is_past_its_knee() -> None:
    async def measure(rate: float) -> Step:
        return Step(rate, min(rate, 10.0), 0.1, 0.2, max(0.0, 1 - 10.0 / rate))

    knee = await find_knee(measure, first=2.0)
    assert 7.0 < knee.rate <= 10.2


async def test_a_service_that_never_keeps_up_has_no_knee() -> None:
    async def measure(rate: float) -> Step:
        return Step(rate, 0.0, math.nan, math.nan, 1.0)

    knee = await find_knee(measure, first=2.0)
    assert knee.rate == 0.0
    ElementTree.fromstring(latency_picture("nothing", knee))


async def test_the_picture_is_well_formed_whatever_the_title() -> None:
    knee = await find_knee(service_with_knee(10.0), first=2.0)  # type: ignore[arg-type]
    drawn = ElementTree.fromstring(latency_picture("p99 < 1 s & more", knee))
    assert len([each for each in drawn if each.tag.endswith("polyline")]) == 2


def test_the_distribution_ends_with_all_calls() -> None:
    latencies = Latencies()
    for number in range(1, 1001):
        latencies.record(number / 1000)
    rows = latencies.distribution().splitlines()
    assert rows[-1] == "#[Total count = 1000]"
    value, share, total, beyond = rows[-2].split()
    assert float(value) == pytest.approx(1000, rel=0.003)
    assert (float(share), int(total), beyond) == (1.0, 1000, "inf")
