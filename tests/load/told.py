"""Loads a demo world into running services in bulk, with vectors that need no encoder.

The vectors replace the encoder's where only time, memory and recall are measured: each word has a random direction,
and a text is the sum of its words' directions, weighted by how rare they are. Texts that share words are near one
another, as with a real encoder; meaning is ignored.
"""

from __future__ import annotations

import hashlib
import json
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping

import grpc
import numpy as np
from numpy.typing import NDArray

from citewell.profiler.v1 import ledger_pb2, ledger_pb2_grpc, profile_query_pb2, profile_query_pb2_grpc
from citewell.runtime.channels import SERVICE_CONFIG
from citewell.scholarly.contexts import normalise
from citewell.scholarly.publications import Publication
from citewell.types.messages import publication_to_message
from citewell.types.v1 import publication_pb2

VectorOf = Callable[[str], NDArray[np.float32]]
CHUNK = 256
_PATIENCE_SECONDS = 3600.0


class WordVectors:
    """Random projections of words: the same word has the same direction in every run."""

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self._words: dict[str, NDArray[np.float32]] = {}

    def __call__(self, text: str) -> NDArray[np.float32]:
        """A unit vector for a text."""
        total = np.sum([self._word(word) for word in text.lower().split()] or [self._word("")], axis=0)
        vector: NDArray[np.float32] = (total / np.linalg.norm(total)).astype(np.float32)
        return vector

    def _word(self, word: str) -> NDArray[np.float32]:
        if word not in self._words:
            draw = np.random.default_rng(zlib.crc32(word.encode()))
            self._words[word] = (draw.standard_normal(self._dimension) * max(len(word) - 3, 0.3)).astype(np.float32)
        return self._words[word]


def tell(addresses: Mapping[str, str], publications: Iterable[Publication], vectors: VectorOf | None = None) -> None:
    """Loads the publications, with these vectors of their texts if given, and returns when all are searchable."""
    options = [("grpc.service_config", json.dumps(SERVICE_CONFIG)), ("grpc.max_receive_message_length", 64 << 20)]
    with grpc.insecure_channel(addresses["profiler"], options) as channel:
        ledger = ledger_pb2_grpc.LedgerServiceStub(channel)
        profiles = profile_query_pb2_grpc.ProfileQueryServiceStub(channel)
        encoder = profiles.Info(profile_query_pb2.InfoRequest(), timeout=60).encoder
        for request in _requests(publications, vectors, encoder.hash):  # one call each: streams end with connections
            answer = ledger.LoadPublications(iter([request]), timeout=_PATIENCE_SECONDS)
            if answer.rejected:
                raise ValueError(f"{len(answer.rejected)} publications were refused: {answer.rejected[0].message}")
        end = time.monotonic() + _PATIENCE_SECONDS
        while sum(view.marks for view in ledger.ListViews(ledger_pb2.ListViewsRequest(), timeout=60).views):
            if time.monotonic() > end:
                raise TimeoutError("not searchable in time")
            time.sleep(0.2)


def _requests(
    publications: Iterable[Publication], vectors: VectorOf | None, model_hash: str
) -> Iterator[ledger_pb2.LoadPublicationsRequest]:
    events: list[publication_pb2.PublicationEvent] = []
    for publication in publications:
        message = publication_to_message(publication)
        if vectors is not None:
            for text in _texts(publication):
                message.vectors.add(
                    text_hash=hashlib.sha256(text.encode()).digest(),
                    model_hash=model_hash,
                    values=vectors(text).astype("<f4").tobytes(),
                )
        events.append(publication_pb2.PublicationEvent(event_id=publication.paper_id, publication=message))
        if len(events) == CHUNK:
            yield ledger_pb2.LoadPublicationsRequest(events=events)
            events = []
    if events:
        yield ledger_pb2.LoadPublicationsRequest(events=events)


def _texts(publication: Publication) -> Iterator[str]:
    """The texts that the default encoder would encode."""
    yield f"{normalise(publication.title)}. {normalise(publication.abstract)}"
    for contexts in publication.contexts().values():
        yield from contexts
