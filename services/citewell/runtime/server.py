"""The life of a service's process: start, warm, serve, drain, stop."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NoReturn, Protocol, TypeVar

import grpc
from grpc_reflection.v1alpha import reflection

from citewell.runtime.access import Access
from citewell.runtime.admission import Admission, AdmissionLimits
from citewell.runtime.errors import CitewellError
from citewell.runtime.health import Check, Dependencies, Health
from citewell.runtime.interceptors import CallInterceptor
from citewell.runtime.settings import ServiceSettings, UnknownSetting, load_settings, without_passwords
from citewell.runtime.telemetry import Telemetry, logger
from citewell.runtime.tls import server_credentials
from citewell.runtime.worker_threads import worker_pool

HEALTH_INTERVAL_SECONDS = 2.0

# The default of 700 new objects between two collections makes a service that handles thousands of small objects a call
# spend a tenth of its time in them.
NEW_OBJECTS_BETWEEN_COLLECTIONS = 20_000


class Service(Protocol):
    """What a service implements; the rest of its process is in this module."""

    @property
    def grpc_services(self) -> tuple[str, ...]:
        """Full names of its gRPC services."""

    def register(self, server: grpc.aio.Server) -> None:
        """Adds its handlers."""

    async def start(self) -> None:
        """Opens stores, warms models. Until it returns, the process is alive but neither started nor ready."""

    async def check(self) -> None:
        """Raises when the service itself cannot answer. A dependency that is gone is no reason."""

    def dependencies(self) -> Mapping[str, Check]:
        """What it depends on, by name: each check raises while that cannot be used. Asked after start()."""

    async def stop(self) -> None:
        """Flushes and closes, after the last call has ended."""


Settings = TypeVar("Settings", bound=ServiceSettings)


def run(name: str, kind: type[Settings], build: Callable[[Settings], Service]) -> None:
    """Runs a service until SIGTERM or SIGINT. The one line of every service's __main__.

    A process that cannot start prints one line and ends with code 2 for a wrong setting, 1 for anything else.
    """
    settings = load_settings(kind)
    telemetry: Telemetry | None = None
    try:
        telemetry = Telemetry(name, settings)
        asyncio.run(ServiceProcess(name, settings, build(settings), _collect_less).run())
    except UnknownSetting as error:
        _end(name, f"{error}", 2)
    except CitewellError as error:  # e.g. a store of another version
        _end(name, f"{error}", 1)
    except ModuleNotFoundError as error:
        _end(name, f"the package {error.name} is not installed; the settings ask for what needs it", 1)
    except Exception as error:
        logger.debug("cannot start", exc_info=error)
        _end(name, f"{type(error).__name__}: {str(error).partition(chr(10))[0]} (LOG_LEVEL=DEBUG shows where)", 1)
    finally:
        if telemetry is not None:
            telemetry.shutdown()


def _collect_less() -> None:
    """Leaves modules, models and stores, which live as long as the process, out of all later garbage collections."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS_BETWEEN_COLLECTIONS)


def _end(name: str, why: str, code: int) -> NoReturn:
    print(f"citewell {name}: {without_passwords(why)}", file=sys.stderr)
    raise SystemExit(code) from None


class ServiceProcess:
    """One gRPC server around one service."""

    def __init__(
        self, name: str, settings: ServiceSettings, service: Service, started: Callable[[], None] = lambda: None
    ) -> None:
        """`started` is called once the service serves."""
        self._name, self._settings, self._service, self._started = name, settings, service, started
        self._health = Health(service.grpc_services)
        self._ready: bool | None = None
        self._stopping = asyncio.Event()
        self.bound = asyncio.Event()
        """Set once `port` is known."""

    def stop(self) -> None:
        """Begins the graceful stop; run() returns when it is done."""
        self._stopping.set()

    async def run(self) -> None:
        """Serves until told to stop."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(worker_pool(None, "asyncio"))
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self.stop)
        servers = await self._open()
        await self._health.starting()
        for server in servers:
            await server.start()
        self.bound.set()
        try:
            if await self._until_stopped(self._service.start()):
                self._started()
                await self._health.started()
                logger.info("serving", host=self._settings.host, port=self.port)
                await self._until_stopped(self._watch())
        finally:
            await self._drain(servers)

    async def _open(self) -> list[grpc.aio.Server]:
        """The server, and one for health checks alone if the settings ask for it; ports are bound, nothing serves."""
        settings = self._settings
        limits = AdmissionLimits(
            settings.most_calls, settings.most_request_megabytes << 20, settings.longest_wait_seconds
        )
        admission = Admission(limits, time.monotonic)
        interceptor = CallInterceptor(settings.default_deadline_seconds, admission, Access(settings.access_policy))
        server = grpc.aio.server(interceptors=[interceptor], options=_options(settings))
        servers = [server]
        try:
            secure = server_credentials(settings.tls) if settings.tls.certificate else None
            self.port = self._bind(server, settings.port, secure)
            if settings.health_port:
                probed = grpc.aio.server(options=_options(settings))
                servers.append(probed)
                self._health.register(probed)
                self._bind(probed, settings.health_port, None)
        except (UnknownSetting, SystemExit):
            await asyncio.gather(*(each.stop(None) for each in servers))
            raise
        self._service.register(server)
        self._health.register(server)
        names = (*self._service.grpc_services, "grpc.health.v1.Health", reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        return servers

    def _bind(self, server: grpc.aio.Server, port: int, secure: grpc.ServerCredentials | None) -> int:
        address = f"{self._settings.host}:{port}"
        try:
            return server.add_secure_port(address, secure) if secure else server.add_insecure_port(address)
        except RuntimeError:
            raise SystemExit(
                f"citewell {self._name}: port {port} on {self._settings.host} cannot be used; "
                "is something listening there?"
            ) from None

    async def _until_stopped(self, work: Awaitable[None]) -> bool:
        """Runs the work until it ends or a stop is requested; whether it ended."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            stop.cancel()
            task.result()
            return True
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return False

    async def _watch(self) -> None:
        """Keeps readiness and the dependencies' metric up to date until cancelled."""
        dependencies = Dependencies(self._service.dependencies())

        async def forever(look: Callable[[], Awaitable[None]]) -> None:
            while True:
                await look()
                await asyncio.sleep(HEALTH_INTERVAL_SECONDS)

        await asyncio.gather(forever(self._look), forever(dependencies.look))

    async def _look(self) -> None:
        try:
            await asyncio.wait_for(self._service.check(), HEALTH_INTERVAL_SECONDS * 5)
            ready, why = True, ""
        except Exception as error:
            ready, why = False, f"{error}" or type(error).__name__
        if ready is not self._ready:
            self._ready = ready
            await self._health.ready(ready)
            logger.info("health", ready=ready, why=why)

    async def _drain(self, servers: Sequence[grpc.aio.Server]) -> None:
        """Says that it is not ready, lets calls in flight finish, then closes the service."""
        await self._health.ready(False)
        logger.info("stopping")
        await asyncio.sleep(self._settings.drain_seconds)
        for server in servers:
            await server.stop(self._settings.grace_seconds)
        await self._service.stop()
        logger.info("stopped")


def _options(settings: ServiceSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # a port in use is an error; gRPC would share it
        ("grpc.max_connection_age_ms", int(settings.max_connection_age_seconds * 1000)),
        ("grpc.max_connection_age_grace_ms", int(settings.default_deadline_seconds * 1000)),
        ("grpc.server_handshake_timeout_ms", int(settings.handshake_seconds * 1000)),
        ("grpc.max_allowed_incoming_connections", settings.most_connections),
        ("grpc.max_concurrent_streams", max(1000, 2 * settings.most_calls)),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # From the first size on, gRPC refuses calls at random; by default that is the size of our longest token.
        ("grpc.max_metadata_size", 16 << 10),
        ("grpc.absolute_max_metadata_size", 32 << 10),
        ("grpc.max_receive_message_length", settings.max_message_megabytes << 20),
        ("grpc.max_send_message_length", settings.max_message_megabytes << 20),
    ]
