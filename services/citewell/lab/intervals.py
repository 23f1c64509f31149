"""Means with their intervals, as text."""

from __future__ import annotations

from collections.abc import Mapping

Figure = Mapping[str, float]
"""A mean with its interval: mean, low, high."""


def interval(figure: Figure, digits: int = 1, *, signed: bool = False, short: bool = False) -> str:
    """31.1 [29.4, 32.8]; short: 31.1 ±1.7, where the wider half of the interval is shown."""
    sign = "+" if signed else ""
    if short:
        half = max(figure["high"] - figure["mean"], figure["mean"] - figure["low"])
        return f"{figure['mean']:{sign}.{digits}f} ±{half:.{digits}f}"
    return f"{figure['mean']:{sign}.{digits}f} [{figure['low']:{sign}.{digits}f}, {figure['high']:{sign}.{digits}f}]"
