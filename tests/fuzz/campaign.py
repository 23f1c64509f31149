"""Runs parsers and RPCs against random and mutated inputs, and collects what must not happen."""

from __future__ import annotations

import asyncio
import http.client
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tests.fuzz.mutating import Mutator
from tests.fuzz.parsers import Parser

PARSER_SECONDS = 10.0
"""A parser that takes more processor time for one input hangs. Inputs are small, and parsers wait for nothing."""
CALL_SECONDS = 30.0
_FORBIDDEN = ("INTERNAL", "UNKNOWN", "DATA_LOSS")


@dataclass
class Findings:
    """What was tried, and what must not happen."""

    tried: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    problems: dict[str, str] = field(default_factory=dict)
    """One example for each kind of problem."""

    def problem(self, kind: str, example: str) -> None:
        if kind not in self.problems:
            self.problems[kind] = example
            print(f"PROBLEM {kind}\n{example}", flush=True)  # at once: the campaign may not reach its end

    def __str__(self) -> str:
        rows = [f"{name:<70} {count:>9,}" for name, count in sorted(self.tried.items())]
        rows += [f"  answered {name:<60} {count:>9,}" for name, count in sorted(self.answers.items())]
        rows += [f"PROBLEM {kind}" for kind in self.problems]
        return "\n".join([*rows, f"{self.tried.total():,} inputs, {len(self.problems)} problems"])


class _Hangs(BaseException):
    """No Exception, so that a parser cannot catch it."""


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    def stop(_: int, __: FrameType | None) -> None:
        raise _Hangs

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def try_parser(parser: Parser, data: bytes, findings: Findings) -> None:
    """Parses one input."""
    findings.tried[f"parser {parser.name}"] += 1
    try:
        with _at_most(PARSER_SECONDS):
            parser.parse(data)
    except parser.refusals:
        pass
    except _Hangs:
        where = traceback.format_exc().splitlines()[-4:]
        findings.problem(f"{parser.name}: hangs", f"{data[:2000]!r}\n{where}")
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = next((frame for frame in reversed(frames) if "/citewell/" in frame.filename), frames[-1])
        kind = f"{parser.name}: {type(error).__name__} at {place.filename.rpartition('/')[2]}:{place.lineno}"
        findings.problem(kind, f"{data[:2000]!r}\n{error}")


def fuzz_parsers(parsers: Sequence[Parser], seconds: float, seed: int, findings: Findings) -> None:
    """Tries the parsers in turn for so many seconds."""
    mutator = Mutator(seed)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for parser in parsers:
            start = mutator.random.choice(parser.seeds)
            dice = mutator.random.random()
            if dice < 0.5:
                data = mutator.broken(start)
            elif dice < 0.9:
                data = mutator.woven(parser.seeds, parser.tokens)
            else:
                data = mutator.bytes_()
            try_parser(parser, data, findings)


class RpcCampaign:
    """Calls RPCs with random, mutated and broken requests."""

    def __init__(
        self,
        channels: Mapping[str, grpc.aio.Channel],
        rpcs: Sequence[MethodDescriptor],
        seeds: Sequence[Message],
        seed: int,
        findings: Findings,
    ) -> None:
        self._channels, self._rpcs, self._findings = channels, list(rpcs), findings
        self._mutator = Mutator(seed)
        self._seeds: dict[str, list[Message]] = {}
        for message in seeds:
            self._seeds.setdefault(message.DESCRIPTOR.full_name, []).append(message)
            self._mutator.learn(message)

    async def run(self, seconds: float, side_by_side: int = 4) -> None:
        """Calls for so many seconds, some at the same time."""
        end = time.monotonic() + seconds

        async def caller() -> None:
            while time.monotonic() < end:
                await self._call(self._mutator.random.choice(self._rpcs))

        await asyncio.gather(*(caller() for _ in range(side_by_side)))

    def request(self, rpc: MethodDescriptor) -> bytes:
        """The bytes of one request."""
        chance = self._mutator.random
        seeds = self._seeds.get(rpc.input_type.full_name, [])
        if seeds and chance.random() < 0.6:
            message = self._mutator.mutated(chance.choice(seeds))
        else:
            message = self._mutator.message(rpc.input_type)
        data = message.SerializeToString()
        return self._mutator.broken(data) if chance.random() < 0.2 else data

    async def _call(self, rpc: MethodDescriptor) -> None:
        service = rpc.containing_service.full_name
        path = f"/{service}/{rpc.name}"
        count = self._mutator.random.choice((0, 1, 3)) if rpc.client_streaming else 1
        requests = [self.request(rpc) for _ in range(count)]
        kind = f"{'stream' if rpc.client_streaming else 'unary'}_{'stream' if rpc.server_streaming else 'unary'}"
        method = getattr(self._channels[service], kind)(path, request_serializer=None, response_deserializer=None)
        self._findings.tried[path] += 1
        try:
            # The server must answer by itself: the client's own limit is longer than the deadline it sends.
            async with asyncio.timeout(CALL_SECONDS + 15):
                call = method(iter(requests) if rpc.client_streaming else requests[0], timeout=self._seconds(rpc))
                if rpc.server_streaming:
                    async for answer in call:
                        self._learn(rpc, answer)
                else:
                    self._learn(rpc, await call)
            self._findings.answers["OK"] += 1
        except TimeoutError:
            self._findings.problem(f"{path}: hangs", repr(requests)[:3000])
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            self._findings.answers[code] += 1
            if code in _FORBIDDEN or (code == "UNAVAILABLE" and "Socket closed" in str(error.details())):
                self._findings.problem(f"{path}: {code} {error.details()}"[:300], repr(requests)[:3000])

    def _seconds(self, rpc: MethodDescriptor) -> float:
        # A wait for a publication lasts until its deadline.
        return 1.0 if rpc.name == "GetPublicationStatus" else CALL_SECONDS

    def _learn(self, rpc: MethodDescriptor, answer: bytes) -> None:
        if self._mutator.random.random() < 0.2:
            self._mutator.learn(GetMessageClass(rpc.output_type).FromString(answer))


def fuzz_edge(
    port: int, rpcs: Sequence[MethodDescriptor], seeds: Sequence[Message], seconds: float, seed: int, findings: Findings
) -> None:
    """Sends JSON, binary and broken HTTP bodies and headers to the edge."""
    mutator = Mutator(seed)
    by_type = {message.DESCRIPTOR.full_name: message for message in seeds}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        rpc = mutator.random.choice(list(rpcs))
        message = mutator.message(rpc.input_type)
        if (start := by_type.get(rpc.input_type.full_name)) is not None and mutator.random.random() < 0.6:
            message = mutator.mutated(start)
        _post(port, rpc, message, mutator, findings)


_COMPRESSED = b'"code": "internal", "message": "protocol error: sent compressed message without compression support"'
_TYPES = (
    "application/json",
    "application/proto",
    "application/grpc-web+proto",
    "application/connect+json",
    "text/plain",
)


def _post(port: int, rpc: MethodDescriptor, message: Message, mutator: Mutator, findings: Findings) -> None:
    path = f"/{rpc.containing_service.full_name}/{rpc.name}"
    kind = mutator.random.choice(_TYPES[:2] * 3 + _TYPES)
    body = _json(message) if "json" in kind else message.SerializeToString()
    if mutator.random.random() < 0.3:
        body = mutator.broken(body)
    if "connect+" in kind or "grpc-web" in kind:
        body = bytes([mutator.random.choice((0, 0, 1, 2, 128))]) + len(body).to_bytes(4, "big") + body
    headers = {
        "content-type": kind,
        "connect-timeout-ms": mutator.random.choice(("20000", "20000", "20000", "0", "-1", "x", "9" * 30)),
    }
    if mutator.random.random() < 0.1:
        headers["authorization"] = mutator.random.choice(("Bearer", "Bearer x.y.z", "\x7f" * 10, "x" * 5000))
    if mutator.random.random() < 0.1:
        headers["traceparent"] = mutator.random.choice(("", "00-x", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "é"))
    findings.tried[f"edge {path}"] += 1
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CALL_SECONDS + 15)
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        told = answer.read()
        findings.answers[f"HTTP {answer.status}"] += 1
        # "internal" is what Connect prescribes for a compressed message without a compression.
        told = told.replace(_COMPRESSED, b"")
        wrong = answer.status == 500 or any(
            f'"code":"{code}"' in told[-2000:].decode("utf-8", "replace").replace(" ", "")
            for code in ("internal", "unknown")
        )
        if wrong:
            text = told[-300:].decode("utf-8", "replace")
            findings.problem(f"edge {path} {kind}: {answer.status} {text}"[:300], f"{headers} {body[:2000]!r}")
    except TimeoutError:
        findings.problem(f"edge {path} {kind}: hangs", f"{headers} {body[:2000]!r}")
    except (http.client.HTTPException, OSError) as error:
        findings.problem(f"edge {path} {kind}: {type(error).__name__} {error}"[:200], f"{headers} {body[:2000]!r}")
    finally:
        connection.close()


def _json(message: Message) -> bytes:
    try:
        return json_format.MessageToJson(message).encode("utf-8", "surrogatepass")
    except (ValueError, json_format.Error):  # e.g. a time out of range
        return b"{}"
