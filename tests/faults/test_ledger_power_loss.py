"""An event that the SQLite ledger acknowledged as applied survives a power cut. The log may have deleted it by then."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.encoding import Encoders
from citewell.profiler.ledger.ledger import Ledger
from citewell.profiler.ledger.lifecycle import open_ledger
from citewell.scholarly.outcomes import Outcome
from citewell.scholarly.positions import LogPosition
from tests.ledger_suite import WEIGHTS
from tests.ledger_world import HashEncoder
from tests.servers.power_cut import PowerCut

pytestmark = pytest.mark.fault

# Enough for SQLite to checkpoint its write-ahead log into the database during the test.
EVENTS = 400

WRITER = """
import sys
from citewell.profiler.ledger.ledger import IncomingEvent
from citewell.profiler.ledger.rules import SourcedEvent
from citewell.scholarly.positions import LogPosition
from citewell.scholarly.publications import Event
from tests.faults.test_ledger_power_loss import opened
from tests.ledger_suite import paper

ledger = opened(sys.argv[1])
for number in range(100_000):
    event = Event(f"event-{number}", paper(f"p{number}", f"p{number // 2}", abstract="a long story " * 100))
    ledger.apply([IncomingEvent(SourcedEvent(event, LogPosition("log", 0, number)))])
    print(number, flush=True)
"""


def opened(file: str) -> Ledger:
    database, encoder = Database(f"sqlite:///{file}"), HashEncoder(dimension=384)
    open_ledger(database, encoder, WEIGHTS)
    return Ledger(database, Encoders(lambda name: encoder))


@pytest.fixture
def power(tmp_path: Path) -> Iterator[PowerCut]:
    cut = PowerCut(tmp_path / "ledger")
    yield cut
    cut.close()


def test_the_ledger_keeps_what_it_called_applied(power: PowerCut, tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "ledger/ledger.sqlite")],
        env={**os.environ, **power.environment},
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout
        applied = next((int(line) for line in writer.stdout if int(line) == EVENTS), -1)
        writer.kill()
        applied = max([applied, *(int(line) for line in writer.stdout if line.endswith("\n"))])
    assert applied >= EVENTS
    power.leave(tmp_path / "left")
    ledger = opened(str(tmp_path / "left/ledger.sqlite"))
    (reached,) = ledger.applied()
    assert reached.offset > applied
    assert ledger.event_state(LogPosition("log", 0, applied)).outcome is Outcome.APPLIED
    ledger.database.close()
