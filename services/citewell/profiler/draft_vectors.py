"""The vectors of a query's texts. Those of the last drafts are kept, since a draft asks for many places."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

from citewell.profiler.encoder import GraphEncoder
from citewell.profiler.profiles import Vectors

KEPT = 4096
"""Drafts whose vectors are kept: 6 MB with 384 numbers each."""


class DraftVectors:
    """Encodes contexts and drafts (title and abstract), a draft only once while it is among the last `size`."""

    def __init__(self, size: int = KEPT) -> None:
        self._size = size
        self._kept: OrderedDict[bytes, Vectors] = OrderedDict()
        self._lock = threading.Lock()

    def encode(self, encoder: GraphEncoder, context: str, draft: str) -> tuple[Vectors | None, Vectors | None]:
        """The vectors of both texts, None for an empty one. They are the same whether the draft's was kept or not."""
        key = hashlib.sha256(f"{encoder.model_hash}\n{draft}".encode("utf-8", "surrogatepass")).digest()
        of_draft = self._find(key) if draft else None
        texts = [text for text in (context, draft if of_draft is None else "") if text]
        made = encoder.encode(texts, apart=True)
        if draft and of_draft is None:
            of_draft = made[-1].copy()  # a row would keep the context's vector in memory too
            self._keep(key, of_draft)
        return made[0] if context else None, of_draft

    def _find(self, key: bytes) -> Vectors | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _keep(self, key: bytes, vector: Vectors) -> None:
        with self._lock:
            self._kept[key] = vector
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
