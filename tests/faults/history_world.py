"""The world of random histories: a log, two workers, two projectors, one ledger, one index, and a reference model."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import Coroutine
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

from hypothesis.stateful import RuleBasedStateMachine

from citewell.profiler.index_views import IndexWriter
from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.encoding import Encoders
from citewell.profiler.ledger.ledger import IncomingEvent, Ledger
from citewell.profiler.ledger.lifecycle import forget_view
from citewell.profiler.ledger.rules import Result, SourcedEvent
from citewell.profiler.ledger.views import View, read_views
from citewell.profiler.profiles import ProfileWeights
from citewell.profiler.projector import Projector
from citewell.runtime.errors import NotFound
from citewell.scholarly.outcomes import Outcome
from citewell.scholarly.positions import LogPosition
from citewell.scholarly.publications import Event
from tests.ledger_world import (
    HashEncoder,
    LedgerModel,
    LosingIndex,
    MemoryIndex,
)

WEIGHTS = ProfileWeights(0.8, 0.2)
PARTITIONS = 2
# Keep the files in memory, because syncing a disk would take most of the time. Power cuts have their own tests.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
NAMES = "abcd"
CITES = [*NAMES, "stub", "doi:a", "doi:b", "c0"]
TEXTS = ["as in TARGETCIT", "unlike TARGETCIT", "TARGETCIT and OTHERCIT", "see TARGETCIT"]
Place = tuple[int, int]
Answer = TypeVar("Answer")


class HistoryWorld(RuleBasedStateMachine):
    """Workers and projectors as separate processes would be, and what they do with the log."""

    template: Path

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="citewell-history-", dir=MEMORY))
        self.file = self.folder / "ledger.sqlite"
        shutil.copy(self.template, self.file)
        self.encoders = {name: HashEncoder(name) for name in ("hash", "other")}
        self.loop = asyncio.new_event_loop()
        self.volume: MemoryIndex | None = None
        self.index = LosingIndex(self.open_index())
        self.model = LedgerModel()
        self.log: list[list[Event]] = [[] for _ in range(PARTITIONS)]
        self.committed = [0] * PARTITIONS
        self.recorded: set[Place] = set()
        self.loaded: list[list[Event]] = []
        self.dead: list[Event] = []
        self.backup: tuple[LedgerModel, set[Place], list[Event]] | None = None
        self.names = iter(range(10**6))
        self.start()

    def open_index(self) -> IndexWriter:
        self.volume = MemoryIndex()
        return self.volume

    def close_index(self) -> None: ...

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return self.loop.run_until_complete(work)

    def start(self) -> None:
        databases = [Database(f"sqlite:///{self.file}") for _ in range(2)]
        self.ledgers = [Ledger(database, Encoders(self.encoders.__getitem__)) for database in databases]
        self.projectors = [Projector(each.database, each.encoders, self.index, lambda: None) for each in self.ledgers]
        self.database = databases[0]

    def restart(self, worker: int) -> None:
        """Restarts a process. Its caches are lost."""
        self.ledgers[worker].database.close()
        database = Database(f"sqlite:///{self.file}")
        ledger = Ledger(database, Encoders(self.encoders.__getitem__))
        self.ledgers[worker] = ledger
        self.projectors[worker] = Projector(database, ledger.encoders, self.index, lambda: None)
        self.database = self.ledgers[0].database

    def append(self, event: Event) -> None:
        self.log[ord(event.body.paper_id[-1]) % PARTITIONS].append(event)

    def load_again(self, worker: int, events: list[Event]) -> None:
        results = self.ledgers[worker].apply([IncomingEvent(SourcedEvent(event)) for event in events])
        self.compare(results, [self.model.deliver(event) for event in events])

    def next_places(self, partition: int, count: int) -> list[Place]:
        start = self.committed[partition]
        return [(partition, offset) for offset in range(start, min(start + count, len(self.log[partition])))]

    def deliver_next(self, worker: int, partition: int, count: int) -> None:
        """Applies the next events of a partition, and commits them."""
        places = self.next_places(partition, count)
        self.bury(worker, self.apply(worker, places))
        self.committed[partition] += len(places)

    def incoming(self, places: list[Place]) -> list[IncomingEvent]:
        return [IncomingEvent(SourcedEvent(self.event(place), LogPosition("log", *place))) for place in places]

    def event(self, place: Place) -> Event:
        return self.log[place[0]][place[1]]

    def expected(self, places: list[Place]) -> list[str]:
        return [self.model.deliver(self.event(place)) for place in places]

    def apply(self, worker: int, places: list[Place]) -> list[Result]:
        results = self.ledgers[worker].apply(self.incoming(places))
        self.compare(results, self.expected(places))
        self.note(places, [result.outcome.value for result in results])
        return results

    def compare(self, results: list[Result], expected: list[str]) -> None:
        assert [result.outcome.value for result in results] == expected

    def note(self, places: list[Place], outcomes: list[str]) -> None:
        self.recorded |= {place for place, outcome in zip(places, outcomes, strict=True) if outcome != "DEAD"}

    def bury(self, worker: int, results: list[Result]) -> None:
        """Records dead events in the ledger, as happens after their dead letters are delivered."""
        dead = [result for result in results if result.outcome is Outcome.DEAD]
        self.ledgers[worker].record_dead(dead)
        for result in dead:
            assert result.position is not None
            place = result.position.partition, result.position.offset
            self.recorded.add(place)
            self.model.bury(result.event_id)
            self.dead.append(self.event(place))

    def drop_from_index(self, name: str) -> None:
        with suppress(NotFound):  # the view was not created in the index yet
            self.run(self.index.drop_view(name))
        forget_view(self.database, name)

    def new_name(self) -> str:
        return f"name-{next(self.names)}"

    def views(self) -> list[View]:
        with self.database.reading() as connection:
            return read_views(connection)


def copy_ledger(source: Path, target: Path) -> None:
    """Copies a ledger in use with SQLite's backup function, as an operator does."""
    with closing(sqlite3.connect(source)) as from_, closing(sqlite3.connect(target)) as to:
        from_.backup(to)
