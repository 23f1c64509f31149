"""Projects the ledger into the index: reads marked objects, writes their points, then deletes the marks."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from opentelemetry import trace

from citewell.profiler.index_views import IndexViews, IndexWriter
from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.encoding import Encoders
from citewell.profiler.ledger.filling import fill_step
from citewell.profiler.ledger.lifecycle import try_switch
from citewell.profiler.ledger.points import Object, Points, marked, read_points, unmark
from citewell.profiler.ledger.statistics import Settling, refresh_step
from citewell.profiler.ledger.views import View, is_complete, read_views
from citewell.runtime import faults, telemetry
from citewell.runtime.errors import CitewellError, NotFound
from citewell.runtime.telemetry import logger, meter

# Objects in one batch.
BATCH = 1024
# Pause before a batch that is not full, so that a paper marked several times in a row is projected once.
SETTLE_SECONDS = 0.25
# Concurrent batches of a view: the index writes one while the next is read. The index compares versions, so a batch
# that arrives late never overwrites a newer point.
AT_ONCE = 2
# The pause after a scan for statistics, as a multiple of its duration: scans take less than 5 % of the time.
STATISTICS_PAUSE = 20
# Nothing was published for so long: word statistics are brought up to what is there.
SETTLED_SECONDS = 10.0
# Calls whose traces the next batch continues or links. Older ones are forgotten.
MOST_CAUSES = 64
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 5.0

_projected = meter.create_counter("citewell_projected", description="Points written to the index, by kind")


class Projector:
    """Projects the marked objects of every view until it is cancelled.

    A mark is deleted only after the index has acknowledged the write, so a crash loses no work.
    """

    def __init__(
        self,
        database: Database,
        encoders: Encoders,
        index: IndexWriter,
        changed: Callable[[], None],
        notice_seconds: float = 0.0,
    ) -> None:
        """`changed` is called after the ledger's marks changed. Other processes notice this within `notice_seconds`."""
        self._database, self._encoders, self._index, self._changed = database, encoders, index, changed
        self._wake = asyncio.Event()
        self.index_views = IndexViews(database, index, self._marked_again, notice_seconds)
        self._after: dict[str, Object | None] = {}
        self._reading: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._in_hand: set[tuple[str, Object]] = set()
        self._causes: deque[trace.SpanContext] = deque(maxlen=MOST_CAUSES)

    def wake(self, cause: trace.SpanContext = trace.INVALID_SPAN_CONTEXT) -> None:
        """Tells `run` that there are new marks. `cause`: the call that made them; its trace shows their projection."""
        if cause.is_valid:
            self._causes.append(cause)
        self._wake.set()
        self._wake = asyncio.Event()

    def _marked_again(self) -> None:
        self._changed()
        self.wake()

    async def run(self, check_every: float) -> None:
        """Projects until cancelled. Polls every `check_every` seconds for marks made by other processes.

        Each view has tasks of its own, so that a view that fails or hangs does not delay the others.
        """
        running: dict[str, list[asyncio.Task[None]]] = {}
        async with asyncio.TaskGroup() as group:

            async def step() -> int:
                names = {view.name for view in await asyncio.to_thread(self._views)}
                for name in names - running.keys():
                    running[name] = [group.create_task(self._project(name, check_every)) for _ in range(AT_ONCE)]
                for name in running.keys() - names:
                    for task in running.pop(name):
                        task.cancel()
                return 0

            await _for_ever("finding views to project", step, lambda: self._woken(self._wake, check_every))

    async def _project(self, name: str, check_every: float) -> None:
        """Projects into one view until cancelled."""
        woken = self._wake

        async def step() -> int:
            nonlocal woken
            woken, started = self._wake, time.monotonic()  # marks made during the step end the wait after it
            view = next((view for view in await asyncio.to_thread(self._views) if view.name == name), None)
            done = await self._step(view) if view else 0
            if 0 < done < BATCH:
                await asyncio.sleep(max(0.0, started + SETTLE_SECONDS - time.monotonic()))
            return done

        await _for_ever(f"projection into view {name}", step, lambda: self._woken(woken, check_every))

    async def _woken(self, event: asyncio.Event, check_every: float) -> None:
        with suppress(TimeoutError):  # asyncio.wait_for may swallow a cancellation before Python 3.12
            async with asyncio.timeout(check_every):
                await event.wait()

    async def watch_index(self, check_every: float) -> None:
        """Checks every `check_every` seconds whether the index lost data. Runs until cancelled."""

        async def step() -> bool:
            await self.index_views.look()
            return False

        await _for_ever("comparison with the index", step, lambda: asyncio.sleep(check_every))

    async def fill(self, check_every: float) -> None:
        """Encodes texts and builds sums for new models. Runs until cancelled."""

        async def step() -> bool:
            return await asyncio.to_thread(fill_step, self._database, self._encoders)

        await _for_ever("rebuild", step, lambda: asyncio.sleep(check_every))

    async def keep_statistics(self, check_every: float) -> None:
        """Rebuilds word statistics when they have drifted. Runs until cancelled, with long pauses."""
        pause = check_every
        settling = Settling(SETTLED_SECONDS, time.monotonic)

        async def step() -> bool:
            nonlocal pause
            started = time.monotonic()
            if await asyncio.to_thread(refresh_step, self._database, settling):
                self._changed()
            pause = max(check_every, STATISTICS_PAUSE * (time.monotonic() - started))
            return False

        await _for_ever("word statistics", step, lambda: asyncio.sleep(pause))

    async def step(self) -> int:
        """Projects one batch for each view that can be filled, and returns the number of projected objects.

        Objects that a concurrent step is projecting are left out.
        """
        return sum([await self._step(view) for view in await asyncio.to_thread(self._views)])

    async def _step(self, view: View) -> int:
        async with self._reading[view.name]:
            await self.index_views.prepare(view)
            if view.switch_when_complete and await self._may_be_served(view):
                await asyncio.to_thread(try_switch, self._database, view.name)
            points = await asyncio.to_thread(self._read, view)
            mine = {(view.name, each) for each in points.versions}
            self._in_hand |= mine
        try:
            if points.versions:
                with telemetry.following("project batch", self._taken_causes()):
                    await self._write(view, points)
        finally:
            self._in_hand -= mine
        _projected.add(len(points.papers), {"kind": "paper"})
        _projected.add(len(points.spans), {"kind": "span"})
        if points.versions:
            self._changed()
        return len(points.versions)

    async def _may_be_served(self, view: View) -> bool:
        """Whether the view is complete in the ledger, and the index still has what it acknowledged of it."""
        return await asyncio.to_thread(self._is_complete, view) and await self.index_views.is_held(view)

    def _is_complete(self, view: View) -> bool:
        with self._database.reading() as connection:
            return is_complete(connection, view)

    def _taken_causes(self) -> list[trace.SpanContext]:
        causes = list(self._causes)
        self._causes.clear()
        return causes

    async def _write(self, view: View, points: Points) -> None:
        if points.papers or points.spans:
            try:
                await self._index.upsert(view, points.papers, points.spans)
            except NotFound:
                self.index_views.forget(view.name)
                raise
            except CitewellError:
                self.index_views.disturbed()
                raise
        faults.point("after-index-write")
        await asyncio.to_thread(unmark, self._database, view.name, points.versions)

    def _views(self) -> list[View]:
        with self._database.reading() as connection:
            return [view for view in read_views(connection) if view.can_be_filled]

    def _read(self, view: View) -> Points:
        with self._database.reading() as connection:
            # Continue after the last key of the previous batch, and start over at the end of the keys. Taking the
            # smallest keys every time could starve the others.
            after = self._after.get(view.name)
            live = marked(connection, view.name, BATCH, after=after)
            if after and len(live) < BATCH:
                live = list(dict.fromkeys(live + marked(connection, view.name, BATCH - len(live))))
            self._after[view.name] = live[-1] if live else None
            # Loads and rebuilds have lower priority, but always get at least a quarter of a batch.
            room = max(BATCH - len(live), BATCH // 4)
            objects = {*live, *marked(connection, view.name, room, bulk=True)}
            return read_points(connection, view, {each for each in objects if (view.name, each) not in self._in_hand})


async def _for_ever(what: str, step: Callable[[], Awaitable[int]], nothing_left: Callable[[], Awaitable[None]]) -> None:
    """Repeats the step until cancelled. Waits when there was nothing to do, and backs off while the step fails."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            done = await step()
        except Exception as error:
            # The marks are still there after any error, so every error is retried. Unexpected ones log their traceback.
            expected = isinstance(error, CitewellError)
            logger.warning(f"{what} waits", why=str(error), seconds=pause, exc_info=None if expected else error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            continue
        pause = FIRST_PAUSE_SECONDS
        if not done:
            await nothing_left()
