"""Random edits of real-looking drafts: no crash, and offsets that are always right.

The default run makes a few thousand edits, `make fuzz` a million.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.edits import MOST_AT_ONCE, EditCampaign
from tests.unit.edited_drafts import KINDS, check_edited

LONG = 1_000_000


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(edits=st.integers(0, MOST_AT_ONCE), seed=st.integers(0, 1 << 32))
def test_edited_drafts_never_crash_and_offsets_hold(kind: str, edits: int, seed: int) -> None:
    check_edited(kind, edits, seed)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", KINDS)
def test_a_million_edits(kind: str, pytestconfig: pytest.Config, record_property: pytest.RecordProperty) -> None:
    """A quarter of the million for each kind of draft. A finding names the call that repeats it."""
    wanted = LONG // len(KINDS) if pytestconfig.getoption("long") else 500
    campaign = EditCampaign(kind, int(os.environ.get("CITEWELL_FUZZ_SEED", "2026")))
    campaign.run(wanted)
    record_property("edits", campaign.edits)
    record_property("drafts", campaign.drafts)
    record_property("seconds", round(campaign.seconds))
    assert campaign.findings == []
