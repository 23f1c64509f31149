"""The histogram of the load tests."""

import math
import random

import pytest

from tests.load.latencies import Latencies


def test_percentiles_are_those_of_the_sorted_durations() -> None:
    draw = random.Random(7)
    durations = [draw.lognormvariate(-4, 1) for _ in range(5000)]
    latencies = Latencies()
    for seconds in durations:
        latencies.record(seconds)
    for percent in (1, 50, 95, 99, 99.9, 100):
        right = sorted(durations)[math.ceil(len(durations) * percent / 100) - 1]
        assert latencies.percentile(percent) == pytest.approx(right, rel=0.003)
    assert math.isnan(Latencies().percentile(50))
