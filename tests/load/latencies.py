"""A histogram of durations with the same relative error everywhere, as HdrHistogram keeps it."""

from __future__ import annotations

import math
from collections import Counter

# 256 buckets per factor of two: a relative error of 0.3 %.
_BUCKETS_PER_DOUBLING = 256
_LEAST_SECONDS = 1e-6


class Latencies:
    """Counts durations; memory depends on their range, not on their number."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = 0

    def record(self, seconds: float) -> None:
        self._counts[round(_BUCKETS_PER_DOUBLING * math.log2(max(seconds, _LEAST_SECONDS)))] += 1
        self.count += 1

    def percentile(self, percent: float) -> float:
        """This percentile of the durations, in seconds; NaN if nothing was recorded."""
        wanted, seen = math.ceil(self.count * percent / 100), 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= max(wanted, 1):
                return float(2 ** (bucket / _BUCKETS_PER_DOUBLING))
        return math.nan

    def distribution(self) -> str:
        """All percentiles in the text format of HdrHistogram, in milliseconds, for its plotters."""
        rows = ["       Value     Percentile TotalCount 1/(1-Percentile)", ""]
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            share = seen / self.count
            beyond = f"{1 / (1 - share):.2f}" if seen < self.count else "inf"
            rows.append(f"{1000 * 2 ** (bucket / _BUCKETS_PER_DOUBLING):12.3f} {share:.12f} {seen:10d} {beyond:>14}")
        return "\n".join([*rows, f"#[Total count = {self.count}]", ""])

    def row(self) -> str:
        """Count and percentiles in milliseconds."""
        shown = "  ".join(f"p{percent:g} {self.percentile(percent) * 1000:.1f}" for percent in (50, 95, 99, 100))
        return f"{self.count} calls  {shown} ms"
