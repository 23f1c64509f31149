"""The profiler's process: serves ProfileQueryService and LedgerService over one ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

import grpc
from opentelemetry import trace

from citewell.profiler.encoder import GraphEncoder, load_encoder
from citewell.profiler.encoder_files import EncoderUnusable
from citewell.profiler.index_client import IndexClient
from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.encoding import Encoder, Encoders
from citewell.profiler.ledger.ledger import Ledger
from citewell.profiler.ledger.lifecycle import find_serving_view, open_ledger, require_encoder, require_loaded
from citewell.profiler.ledger.views import read_views
from citewell.profiler.ledger_handlers import LedgerHandlers
from citewell.profiler.pools import Pool
from citewell.profiler.profiles import QueryWeights
from citewell.profiler.projector import Projector
from citewell.profiler.query_handlers import QueryHandlers
from citewell.profiler.query_map import BadQueryMap, QueryMap, find_query_map
from citewell.profiler.settings import ProfilerSettings
from citewell.profiler.v1 import ledger_pb2_grpc, profile_query_pb2_grpc
from citewell.profiler.view_metrics import ViewMetrics
from citewell.profiler.watermarks import Watermarks
from citewell.profiler.window_encoder import WindowEncoder, load_window_encoder
from citewell.runtime.channels import open_channel, require_serving
from citewell.runtime.errors import CitewellError, FailedPrecondition, shorten
from citewell.runtime.health import Check
from citewell.runtime.settings import UnknownSetting
from citewell.runtime.telemetry import logger, meter

# Query threads wait for the encoder or for the database. More threads than cores keep both busy.
QUERY_THREADS = 16
# One thread at a time writes to the ledger; the others encode meanwhile.
APPLY_THREADS = 4
RELEASE_SECONDS = 60.0

# A process surely sees another one's change after polling the ledger this many times.
NOTICED_AFTER_LOOKS = 3

_weights_differ = meter.create_gauge(
    "citewell_profiler_weights_differ", description="1 while the served view has other weights than the settings"
)


class ProfilerService:
    """A runtime `Service`."""

    grpc_services = ("citewell.profiler.v1.ProfileQueryService", "citewell.profiler.v1.LedgerService")

    def __init__(self, settings: ProfilerSettings) -> None:
        self._settings = settings
        self._database = Database(settings.ledger_url)
        self._encoders = Encoders(self._load_encoder)
        self._watermarks = Watermarks(self._database)
        self._view_metrics = ViewMetrics(self._database)
        self._tasks: list[asyncio.Task[None]] = []
        self._weights_differ = False
        self._query_pool, self._apply_pool = Pool("query", QUERY_THREADS), Pool("apply", APPLY_THREADS)

    def register(self, server: grpc.aio.Server) -> None:
        settings = self._settings
        # Opened here and not in __init__, because a channel belongs to the running event loop.
        self._channel = open_channel(
            settings.index_address, settings.client_tls, settings.max_message_megabytes, settings.client_token
        )
        index = IndexClient(self._channel, settings.max_message_megabytes)
        notice_seconds = NOTICED_AFTER_LOOKS * settings.progress_seconds
        self._projector = Projector(self._database, self._encoders, index, self._watermarks.changed, notice_seconds)
        ledger = LedgerHandlers(
            Ledger(self._database, self._encoders),
            index,
            self._watermarks,
            self._changed,
            self._apply_pool,
            form=settings.point_form,
            max_views=settings.max_views,
        )
        self._queries = queries = QueryHandlers(
            self._database,
            self._encoders,
            QueryWeights(settings.gamma, settings.delta),
            settings.word_weights,
            self._watermarks,
            self._query_pool,
        )
        ledger_pb2_grpc.add_LedgerServiceServicer_to_server(ledger, server)
        profile_query_pb2_grpc.add_ProfileQueryServiceServicer_to_server(queries, server)

    async def start(self) -> None:
        settings = self._settings
        encoder = await asyncio.to_thread(self._encoders.named, settings.encoder)
        self._queries.query_map = self._find_query_map(encoder.model_hash)
        self._queries.window_encoder = await asyncio.to_thread(self._load_window_encoder, encoder)
        if settings.project:
            await asyncio.to_thread(self._open_ledger, encoder)
        else:
            await self._wait_for_ledger(encoder)
        await self._watermarks.look()
        self._compare_weights()
        self._run(self._watermarks.run(settings.progress_seconds))
        self._run(self._release_encoders())
        if settings.project:
            self._run(self._projector.run(settings.progress_seconds))
            self._run(self._projector.fill(settings.progress_seconds))
            self._run(self._projector.keep_statistics(settings.progress_seconds))
            self._run(self._projector.watch_index(settings.index_check_seconds))

    async def check(self) -> None:
        """Does not check the ledger: without it, a started profiler still embeds queries, and other calls fail."""
        self._compare_weights()

    def dependencies(self) -> Mapping[str, Check]:
        async def ledger() -> None:
            await self._watermarks.look()
            await self._view_metrics.look()

        return {
            "ledger": ledger,
            "index": partial(require_serving, self._channel, "citewell.index.v1.IndexService"),
        }

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pool in (self._query_pool, self._apply_pool):
            pool.close()
        await self._channel.close()
        self._database.close()

    def _open_ledger(self, encoder: Encoder) -> None:
        settings = self._settings
        try:
            open_ledger(
                self._database,
                encoder,
                settings.profile_weights,
                form=settings.point_form,
                max_views=settings.max_views,
                migrate=settings.migrate,
            )
        except FailedPrecondition as error:
            if error.reason != "TOO_MANY_VIEWS":
                raise
            # The operator needs a running profiler to drop a view, so this one serves with the served view's weights.
            logger.warning("the settings' weights need another view", why=error.message)

    def _find_query_map(self, encoder: str) -> QueryMap | None:
        setting = self._settings.query_map
        try:
            return find_query_map(setting, encoder)
        except (OSError, BadQueryMap) as error:
            raise UnknownSetting(f"query_map {setting!r} cannot be used: {error}") from None

    def _load_window_encoder(self, encoder: Encoder) -> WindowEncoder | None:
        settings = self._settings
        try:
            found = load_window_encoder(
                settings.window_encoder,
                encoder.model_hash,
                runtime=settings.encoder_runtime,
                precision=settings.encoder_precision,
                threads=settings.encoder_threads,
                cache=settings.encoder_cache,
            )
        except (OSError, EncoderUnusable) as error:
            raise UnknownSetting(f"window_encoder {settings.window_encoder!r} cannot be used: {error}") from None
        if found and found.encoder.dimension != encoder.dimension:
            sizes = f"its vectors have {found.encoder.dimension} numbers, those of the profiles {encoder.dimension}"
            raise UnknownSetting(f"window_encoder {settings.window_encoder!r} cannot be used: {sizes}")
        if found and isinstance(encoder, GraphEncoder):
            found.encoder.turns = encoder.turns  # the two share the cores
        return found

    async def _wait_for_ledger(self, encoder: Encoder) -> None:
        """Waits until a process that projects has opened the ledger. This process does not write to it."""
        if not self._settings.migrate:
            await asyncio.to_thread(self._database.require_migrated)
        while (serving := await asyncio.to_thread(find_serving_view, self._database)) is None:
            logger.info("waiting for a profiler with PROJECT=true to open the ledger")
            await asyncio.sleep(max(1.0, self._settings.progress_seconds))
        await asyncio.to_thread(require_loaded, self._database)
        require_encoder(serving, encoder)

    async def _release_encoders(self) -> None:
        """Releases encoders that no view uses any more. Runs until cancelled."""
        while True:
            await asyncio.sleep(RELEASE_SECONDS)
            try:
                names = await asyncio.to_thread(self._encoder_names)
            except CitewellError as error:
                logger.warning("ledger cannot be read", why=error.message)
            else:
                self._encoders.keep({self._settings.encoder, *names})

    def _encoder_names(self) -> set[str]:
        with self._database.reading() as connection:
            return {view.model.name for view in read_views(connection)}

    def _compare_weights(self) -> None:
        """Sets a metric, and logs once, when the weights of the served view differ from the settings."""
        settings, view = self._settings, self._watermarks.view
        differ = (view.weights, view.form) != (settings.profile_weights, settings.point_form)
        _weights_differ.set(int(differ))
        if differ and not self._weights_differ:
            logger.warning(
                "the served view has other weights than the settings; it serves as it is",
                view=view.name,
                weights=str(view.weights),
                form=str(view.form),
                settings_weights=str(settings.profile_weights),
                settings_form=str(settings.point_form),
                project=settings.project,
            )
        self._weights_differ = differ

    def _changed(self) -> None:
        """Wakes the watermarks and the projector after a call to this process changed the ledger."""
        self._watermarks.changed()
        self._projector.wake(trace.get_current_span().get_span_context())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    def _load_encoder(self, name: str) -> Any:
        settings = self._settings
        try:
            return load_encoder(
                name,
                runtime=settings.encoder_runtime,
                precision=settings.encoder_precision,
                max_tokens=settings.encoder_max_tokens,
                strip_markers=settings.encoder_strip_markers,
                threads=settings.encoder_threads,
                cache=settings.encoder_cache,
                allow_download=settings.encoder_allow_download,
            )
        except EncoderUnusable as error:
            raise FailedPrecondition(str(error), reason="ENCODER_UNUSABLE") from None
        except OSError as error:  # a name that no folder can have, or a folder that this process may not read
            why = f"encoder {shorten(name)!r}: {shorten(str(error.filename))} cannot be used: {error.strerror}"
            raise FailedPrecondition(why, reason="ENCODER_UNUSABLE") from None
