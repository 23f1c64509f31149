"""The blocking client: it runs the asyncio client on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from citewell.client.aio import AsyncCitewell, Publishable
from citewell.client.connection import Tls
from citewell.client.options import DEFAULTS, Options
from citewell.client.results import (
    DeadLetter,
    Explanation,
    FeedbackPolicy,
    LogInfo,
    PublicationStatus,
    Receipt,
    Recommendation,
    Replayed,
)
from citewell.runtime.errors import CitewellError, Unavailable
from citewell.scholarly.queries import Query

T = TypeVar("T")


class Citewell:
    """Connections to the recommender (for answers) and to ingestion (for publications); either may be left out.

    Close it, or use it in a `with` statement. It is thread-safe.
    """

    def __init__(
        self,
        recommender: str = "",
        *,
        ingestion: str = "",
        tls: Tls | None = None,
        token: Path | None = None,
        timeout: float = 30.0,
    ) -> None:
        self._client = AsyncCitewell(recommender, ingestion=ingestion, tls=tls, token=token, timeout=timeout)
        self._loop = asyncio.new_event_loop()
        self._closed, self._closing = False, threading.Lock()
        self._thread = threading.Thread(target=self._loop.run_forever, name="citewell-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends calls in flight, which then raise Unavailable, and closes the connections."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            ending = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        ending.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def recommend(self, query: Query, options: Options = DEFAULTS, *, timeout: float | None = None) -> Recommendation:
        """The best papers for a place in a draft."""
        return self._run(self._client.recommend(query, options, timeout=timeout))

    def recommend_batch(
        self, queries: Sequence[Query], options: Options = DEFAULTS, *, timeout: float | None = None
    ) -> list[Recommendation | CitewellError]:
        """An answer or an error for each of up to 100 queries, in order."""
        return self._run(self._client.recommend_batch(queries, options, timeout=timeout))

    def feedback_policy(self, *, timeout: float | None = None) -> FeedbackPolicy:
        """What the recommender keeps of feedback."""
        return self._run(self._client.feedback_policy(timeout=timeout))

    def record_feedback(
        self,
        answer: Recommendation,
        *,
        chosen: Sequence[str] = (),
        dismissed: Sequence[str] = (),
        shown: Sequence[str] | None = None,
        query: Query | None = None,
        request_id: str = "",
        timeout: float | None = None,
    ) -> str:
        """Tells what a writer chose among an answer's papers; returns the event's id.

        `shown`: ids in their order; default: those of the answer. `query`: pass it only if the writer agrees that the
        text is kept.
        """
        return self._run(
            self._client.record_feedback(
                answer,
                chosen=chosen,
                dismissed=dismissed,
                shown=shown,
                query=query,
                request_id=request_id,
                timeout=timeout,
            )
        )

    def explain(
        self, query: Query, paper_id: str, options: Options = DEFAULTS, *, timeout: float | None = None
    ) -> Explanation:
        """Explains a paper's rank for a query; NotFound for a paper that cannot be an answer."""
        return self._run(self._client.explain(query, paper_id, options, timeout=timeout))

    def publish(self, body: Publishable, *, request_id: str = "", timeout: float | None = None) -> Receipt:
        """The receipt of an event that is durable in the log."""
        return self._run(self._client.publish(body, request_id=request_id, timeout=timeout))

    def publish_all(
        self, bodies: Iterable[Publishable], *, in_flight: int = 128, timeout: float | None = None
    ) -> Iterator[Receipt | CitewellError]:
        """Yields for each event, in order, its receipt, or the error that says what is wrong with it."""
        return self._iterate(self._client.publish_all(bodies, in_flight=in_flight, timeout=timeout))

    def status(self, token: str, *, wait: bool = False, timeout: float | None = None) -> PublicationStatus:
        """The state of a publication. With `wait`, returns when it is searchable or a dead letter."""
        return self._run(self._client.status(token, wait=wait, timeout=timeout))

    def dead_letters(self, *, timeout: float | None = None) -> Iterator[DeadLetter]:
        """Every dead letter, page by page, in the order of the log."""
        return self._iterate(self._client.dead_letters(timeout=timeout))

    def redrive(self, ids: Sequence[str], *, request_id: str = "", timeout: float | None = None) -> list[Receipt]:
        """Publishes the events of dead letters again; returns their receipts in the same order."""
        return self._run(self._client.redrive(ids, request_id=request_id, timeout=timeout))

    def replay(self, partition: int, first: int, end: int, *, timeout: float | None = None) -> Iterator[Replayed]:
        """Delivers the events with first ≤ offset < end again, page by page. Applied events change nothing."""
        return self._iterate(self._client.replay(partition, first, end, timeout=timeout))

    def replay_times(self, first: datetime, end: datetime, *, timeout: float | None = None) -> Iterator[Replayed]:
        """Delivers the events appended at first ≤ time < end again, of every partition; times must have a time zone."""
        return self._iterate(self._client.replay_times(first, end, timeout=timeout))

    def log(self, *, timeout: float | None = None) -> LogInfo:
        """The event log: its partitions, and the position up to which each is applied."""
        return self._run(self._client.log(timeout=timeout))

    async def _end(self) -> None:
        await self._client.close()
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._loop.shutdown_asyncgens()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._closing:  # what is started before `_end` is ended by it; nothing is started later
            if self._closed:
                work.close()
                raise ValueError("this client is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Unavailable("the client was closed during the call") from None
        except BaseException:
            future.cancel()  # the caller was interrupted: cancel the call
            raise

    def _iterate(self, results: AsyncIterator[T]) -> Iterator[T]:
        try:
            while True:
                try:
                    found = self._run(_next(results))
                except StopAsyncIteration:
                    return
                yield found
        finally:
            if not self._closed:  # `close` closes what is iterated
                self._run(results.aclose())  # type: ignore[attr-defined]


async def _next(results: AsyncIterator[T]) -> T:
    return await anext(results)
