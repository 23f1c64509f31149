"""How many citing contexts the reranker's model reads: asked once, remembered, and asked again now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from citewell.runtime.errors import CitewellError

ASK_SECONDS = 0.5
"""The longest that a query waits for the first answer."""
FRESH_SECONDS = 30.0
"""After so long the service is asked again, in the background."""
REST_SECONDS = 2.0
"""After a failure the service is not asked for so long."""


class CitingContexts:
    """Remembers the number. Only a query that finds nothing remembered waits for the answer."""

    def __init__(self, ask: Callable[[float], Awaitable[int]], clock: Callable[[], float]) -> None:
        self._ask, self._clock = ask, clock
        self._count: int | None = None
        self._model_hash = ""
        self._next = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def count(self) -> int | None:
        """The number, or None while the reranker has never answered."""
        if self._asking is None and self._clock() >= self._next:
            self._asking = asyncio.get_running_loop().create_task(self._refresh())
        if self._count is None and self._asking is not None:
            await asyncio.shield(self._asking)
        return self._count

    def scored_by(self, model_hash: str) -> None:
        """Says which model answered. Another one than before may read another number of contexts."""
        if self._model_hash and model_hash != self._model_hash:
            self._next = float("-inf")
        self._model_hash = model_hash

    async def _refresh(self) -> None:
        try:
            async with asyncio.timeout(ASK_SECONDS):
                self._count = await self._ask(ASK_SECONDS)
            self._next = self._clock() + FRESH_SECONDS
        except (CitewellError, TimeoutError):
            self._next = self._clock() + REST_SECONDS
        finally:
            self._asking = None
