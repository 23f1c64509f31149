"""Callers who ask and publish while something is disturbed, and note what must not happen."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import grpc

from citewell.ingestion.v1 import ingestion_pb2
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.scholarly.publications import Publication
from tests.demo_world import Asked
from tests.e2e.client import Client, Refusal
from tests.servers.processes import wait_until

USUAL = {"CONTEXT_CUT"}
"""What the tiny encoder lacks in any case."""
SLACK = 10.0
"""How much later than its deadline a call may end: callers, proxies and all services share a busy machine."""
PATIENCE = 90.0


@dataclass
class Callers:
    """Threads that ask with changing deadlines, and one that publishes."""

    addresses: Mapping[str, str]
    asked: Sequence[Asked]
    deadlines: tuple[float, ...] = (0.5, 1.0, 3.0)
    endings: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    answers: list[set[str]] = field(default_factory=list)
    """The reasons of degradation of each answer."""
    tokens: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def calling(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._ask, args=[number]) for number in range(3)]
        threads.append(threading.Thread(target=self._publish))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.over.set()
            for thread in threads:
                thread.join()

    def _ask(self, number: int) -> None:
        client = Client(self.addresses)
        deadlines = itertools.islice(itertools.cycle(self.deadlines), number, None)
        for asked, deadline in zip(itertools.cycle(self.asked), deadlines, strict=False):
            if self.over.is_set():
                break
            started = time.monotonic()
            try:
                answer = client.recommend(asked.query, messages.Options(rerank_depth=5), seconds=deadline)
                ending = "OK"
                self.answers.append({each.reason for each in answer.degraded})
                if not answer.items:
                    self.wrong.append("an answer is empty")
            except grpc.RpcError as error:
                refusal = Refusal.of(error)
                ending = refusal.code
                if ending not in ("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"):
                    self.wrong.append(f"{refusal}")
            late = time.monotonic() - started - deadline
            if late > SLACK:
                self.wrong.append(f"{ending} came {late:.1f} s after a deadline of {deadline} s")
            self.endings[ending] += 1
        client.close()

    def _publish(self) -> None:
        client = Client(self.addresses)
        while not self.over.wait(0.1):
            name = f"linked-{random.getrandbits(64):x}"
            with suppress(grpc.RpcError):  # publishers repeat what is not acknowledged
                self.tokens.append(client.publish(Publication(name, 1, f"Published while links are cut: {name}")).token)
        client.close()

    def recovered(self) -> tuple[float, float]:
        """Seconds until an answer is whole, and until all that was acknowledged is searchable; TimeoutError if late."""
        client = Client(self.addresses)
        started = time.monotonic()
        try:
            wait_until(lambda: whole(client, self.asked[0]), "a whole answer again", PATIENCE)
            answered = time.monotonic() - started
            for token in self.tokens:
                status = client.settled(token, seconds=PATIENCE)
                assert status.state == ingestion_pb2.PUBLICATION_STATE_SEARCHABLE, status
        finally:
            client.close()
        return round(answered, 1), round(time.monotonic() - started, 1)


def whole(client: Client, asked: Asked) -> bool:
    """Whether an answer comes that lacks nothing."""
    try:
        answer = client.recommend(asked.query, messages.Options(rerank_depth=5), seconds=5.0)
    except grpc.RpcError:
        return False
    return bool(answer.items) and {each.reason for each in answer.degraded} <= USUAL
