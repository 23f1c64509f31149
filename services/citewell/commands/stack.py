"""The five services as processes of this machine: start them, wait until they serve, stop them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from citewell.client import Tls
from citewell.runtime.owner_lock import OwnerLock
from citewell.runtime.settings import TlsClient
from citewell.runtime.tls import client_credentials

# Each service's port relative to the first one. Services stop in this order: the public one first, the stores last.
SERVICES = {"edge": 5, "recommender": 0, "ingestion": 4, "reranker": 3, "profiler": 1, "index": 2}
PORTS = {**SERVICES, "http": 10}
"""`http` is the edge's second port, where the page and the JSON API are."""
DEFAULT_PORT_BASE = 7300
DEFAULT_DATA = Path(".citewell")
STOP_SECONDS = 30.0
_TICK_SECONDS = 0.1


class StackError(Exception):
    """A service cannot be started; the message says which, why, and what to do."""


@dataclass(frozen=True, slots=True)
class State:
    """Which services run over a data folder: `up` writes it, every other command reads it."""

    supervisor: int
    addresses: dict[str, str]
    tls: list[str] = field(default_factory=list)
    """Files of authority, certificate and key with which commands call a secured system; empty = plain text."""

    def write(self, data: Path) -> None:
        partial = data / "up.json.partial"
        partial.write_text(json.dumps(asdict(self), indent=2))
        partial.replace(data / "up.json")

    @staticmethod
    def read(data: Path) -> State | None:
        """The state of the folder; None unless its supervisor still runs."""
        try:
            state = State(**json.loads((data / "up.json").read_text()))
        except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):  # there is none, or it was cut off
            return None
        # After a crash, another program may have the supervisor's process id.
        return state if supervision(data).is_held() else None

    @staticmethod
    def forget(data: Path) -> None:
        (data / "up.json").unlink(missing_ok=True)


def supervision(data: Path) -> OwnerLock:
    """The lock that a supervisor holds as long as it runs."""
    return OwnerLock(data / "up.lock", f"the data folder {data}", "FAILED_PRECONDITION")


def ledger_of(data: Path) -> str:
    """The URL of the ledger in a data folder."""
    return f"sqlite:///{data.resolve() / 'ledger.sqlite'}"


def alive(pid: int) -> bool:
    """Whether a process with this id is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def choose_ports(base: int) -> dict[str, int]:
    """A port a service and one for HTTP: free ones for base 0, else base and those behind it. StackError when taken."""
    holders: list[socket.socket] = []
    ports: dict[str, int] = {}
    try:
        for service, offset in PORTS.items():
            holder = socket.socket()
            holders.append(holder)
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port = base + offset if base else 0
            try:
                holder.bind(("127.0.0.1", port))
            except OSError:
                raise StackError(
                    f"port {port} (for the {service}) is in use; choose others with --port-base, or 0 for free ones"
                ) from None
            ports[service] = holder.getsockname()[1]
    finally:
        for holder in holders:
            holder.close()
    return ports


@dataclass
class Stack:
    """The services as child processes over one data folder, or over what the settings name (`cluster`)."""

    data: Path
    ports: Mapping[str, int]
    cluster: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of these services beside those in the environment, e.g. {"CITEWELL_RECOMMENDER__LOG_LEVEL": "DEBUG"}."""
    tls: Tls | None = None
    """How to ask the services whether they serve, when their settings turn TLS on."""

    def __post_init__(self) -> None:
        self.data = self.data.resolve()
        (self.data / "logs").mkdir(parents=True, exist_ok=True)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def addresses(self) -> dict[str, str]:
        return {service: f"127.0.0.1:{port}" for service, port in self.ports.items()}

    def start(self, services: Iterable[str] = SERVICES) -> None:
        """Starts processes; wait() tells when they serve."""
        _end_in_order_on_sigterm()
        for service in services:
            with self.log(service).open("ab") as log:
                self.processes[service] = subprocess.Popen(
                    self._command(service),
                    env=self._environment(service),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C reaches only the supervisor, which stops the services in order
                )

    def _command(self, service: str) -> list[str]:
        return [sys.executable, "-m", f"citewell.{service}"]

    def _environment(self, service: str) -> dict[str, str]:
        addresses = self.addresses
        told = {
            f"CITEWELL_{service.upper()}__PORT": str(self.ports[service]),
            "CITEWELL_RECOMMENDER__PROFILER_ADDRESS": addresses["profiler"],
            "CITEWELL_RECOMMENDER__INDEX_ADDRESS": addresses["index"],
            "CITEWELL_RECOMMENDER__RERANKER_ADDRESS": addresses["reranker"],
            "CITEWELL_RECOMMENDER__INGESTION_ADDRESS": addresses["ingestion"],
            "CITEWELL_PROFILER__INDEX_ADDRESS": addresses["index"],
            "CITEWELL_EDGE__RECOMMENDER_ADDRESS": addresses["recommender"],
            "CITEWELL_EDGE__HTTP_PORT": str(self.ports["http"]),
            "CITEWELL_INGESTION__PROFILER_ADDRESS": addresses["profiler"],
        }
        if self.cluster:  # the environment names the ledger, the log and the store
            return {"CITEWELL_INDEX__FOLDER": str(self.data / "index"), **os.environ, **told, **self.settings}
        # Everything is in the data folder, whatever the environment names: it may describe a running cluster.
        told |= {
            "CITEWELL_PROFILER__LEDGER_URL": ledger_of(self.data),
            "CITEWELL_INGESTION__DATA": str(self.data),
            "CITEWELL_INGESTION__LOG__KIND": "local",
            "CITEWELL_INDEX__FOLDER": str(self.data / "index"),
            "CITEWELL_INDEX__STORE": "edge",
        }
        return {**os.environ, **told, **self.settings}

    def log(self, service: str) -> Path:
        return self.data / "logs" / f"{service}.log"

    def wait(self, services: Iterable[str] = SERVICES, seconds: float = 120.0) -> None:
        """Returns when all services say SERVING; StackError when one ends, or takes too long."""
        end = time.monotonic() + seconds
        for service in services:
            with self._channel(service) as channel:
                check = health_pb2_grpc.HealthStub(channel).Check
                while not _serving(check):
                    self._require_alive()
                    if time.monotonic() > end:
                        raise StackError(
                            f"the {service} does not serve after {seconds:.0f} s: {self.last_words(service)}"
                        )
                    ended(self.processes[service], _TICK_SECONDS)

    def _channel(self, service: str) -> grpc.Channel:
        address = self.addresses[service]
        if self.tls is None:
            return grpc.insecure_channel(address)
        told = TlsClient(enabled=True, ca=self.tls.ca, certificate=self.tls.certificate, key=self.tls.key)
        return grpc.secure_channel(address, client_credentials(told))

    def _require_alive(self) -> None:
        for service, process in self.processes.items():
            code = process.poll()
            if code is not None:
                raise StackError(f"the {service} ended with code {code}: {self.last_words(service)}")

    def last_words(self, service: str) -> str:
        """The last line of a service's log, and where the rest is."""
        lines = [line for line in self.log(service).read_text(errors="replace").splitlines() if line.strip()]
        return f"{lines[-1] if lines else 'it logged nothing'} (log: {self.log(service)})"

    def stop(self, services: Iterable[str] = SERVICES) -> None:
        """Stops processes one after the other; kills one that does not end in time."""
        for service in services:
            process = self.processes.pop(service, None)
            if process is None:
                continue
            process.terminate()
            if ended(process, STOP_SECONDS) is None:
                process.kill()
                process.wait()

    def kill(self, service: str) -> None:
        """Ends a process at once, as a crash would."""
        process = self.processes.pop(service)
        process.send_signal(signal.SIGKILL)
        process.wait()


def _end_in_order_on_sigterm() -> None:
    """Turns SIGTERM into SystemExit, so that `finally` stops the children; leaves a handler that is set."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def ended(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The exit code, if the process ends within so many seconds."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _serving(check: health_pb2_grpc.HealthStub) -> bool:
    try:
        answer = check(health_pb2.HealthCheckRequest(), timeout=2)
    except grpc.RpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
