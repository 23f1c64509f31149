"""Random edits of real-looking drafts: no crash, and offsets that are always right.

The default run makes a few thousand edits, `make fuzz` a million.
"""

from __future__ import annotations

import os
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.edited_drafts import check_edited

KINDS = ("latex", "markdown", "plain", "word")
LONG = 1_000_000
MOST_AT_ONCE = 12
"""Edits between two readings of a draft: after more of them it no longer looks real."""


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(edits=st.integers(0, MOST_AT_ONCE), seed=st.integers(0, 1 << 32))
def test_edited_drafts_never_crash_and_offsets_hold(kind: str, edits: int, seed: int) -> None:
    check_edited(kind, edits, seed)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", KINDS)
def test_a_million_edits(kind: str, pytestconfig: pytest.Config, record_property: pytest.RecordProperty) -> None:
    """A quarter of the million for each kind of draft. A failure names the call that repeats it."""
    long = pytestconfig.getoption("long")
    wanted = LONG // len(KINDS) if long else 500
    rng = random.Random(int(os.environ.get("CITEWELL_FUZZ_SEED", "2026")))
    made = read = 0
    started = time.monotonic()
    while made < wanted:
        edits, seed = rng.randint(1, MOST_AT_ONCE), rng.getrandbits(32)
        try:
            check_edited(kind, edits, seed)
        except Exception as error:
            raise AssertionError(f"check_edited({kind!r}, {edits}, {seed})") from error
        made, read = made + edits, read + 1
    record_property("edits", made)
    record_property("drafts", read)
    record_property("seconds", round(time.monotonic() - started))
