"""`python -m tests.fuzz.edits KIND`: reads drafts after random edits, in turns that a state file connects.

Exit code: 0 = all edits are through without a finding, 1 = something was found, 3 = time ran out first.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.unit.edited_drafts import KINDS, check_edited

MOST_AT_ONCE = 12
"""Edits between two readings of a draft: after more of them it no longer looks real."""


@dataclass(slots=True)
class EditCampaign:
    """Random edits of one kind of draft. Draft n of a seed is always the same, so a campaign can be continued."""

    kind: str
    seed: int
    edits: int = 0
    drafts: int = 0
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)
    """The calls that repeat what was found, each with its error."""

    def run(self, wanted: int, seconds: float = float("inf")) -> None:
        """Goes on until so many edits are made in all, or so many seconds have passed."""
        started, before = time.monotonic(), self.seconds
        while self.edits < wanted and time.monotonic() - started < seconds:
            rng = random.Random(f"{self.kind}-{self.seed}-{self.drafts}")
            edits, seed = rng.randint(1, MOST_AT_ONCE), rng.getrandbits(32)
            try:
                check_edited(self.kind, edits, seed)
            except Exception as error:
                self.findings.append(f"check_edited({self.kind!r}, {edits}, {seed}): {type(error).__name__}: {error}")
            self.edits, self.drafts = self.edits + edits, self.drafts + 1
            self.seconds = before + time.monotonic() - started

    def __str__(self) -> str:
        told = f"{self.kind}: {self.edits:,} edits, {self.drafts:,} drafts, {self.seconds:.0f} s"
        return "\n".join([f"{told}, {len(self.findings)} findings", *(each[:400] for each in self.findings[:20])])


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("kind", choices=KINDS)
    options.add_argument("--edits", type=int, default=250_000)
    options.add_argument("--seed", type=int, default=2026)
    options.add_argument("--state", type=Path, required=True, help="file that a later turn continues")
    options.add_argument("--seconds", type=float, default=float("inf"), help="length of this turn")
    told = options.parse_args()
    campaign = EditCampaign(told.kind, told.seed)
    if told.state.exists():
        campaign = EditCampaign(**json.loads(told.state.read_text()))
    ends = time.monotonic() + told.seconds
    while campaign.edits < told.edits and (left := ends - time.monotonic()) > 0:
        campaign.run(told.edits, min(left, 30.0))
        told.state.write_text(json.dumps(asdict(campaign), indent=1))
    print(campaign)
    if campaign.findings:
        return 1
    return 0 if campaign.edits >= told.edits else 3


if __name__ == "__main__":
    sys.exit(main())
