"""Invented papers and spans, and every store adapter, for the contract suite of the stores."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import strategies as st
from qdrant_client import AsyncQdrantClient

from citewell.index.accelerator import AcceleratedPoints, AcceleratedStore
from citewell.index.index import Index
from citewell.index.points import PaperPoint, SpanPoint, Vector, unit
from citewell.index.qdrant_edge import EdgeStore
from citewell.index.qdrant_server import QdrantStore
from citewell.index.queries import Search
from citewell.index.store import Kind, Store
from citewell.index.views import View
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.lexical import LexicalQuery, Terms
from citewell.scholarly.papers import ExternalId, Paper, SearchFilter

# Warnings of the client's local mode; a server supports both features.
LOCAL_MODE = [
    pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant"),
    pytest.mark.filterwarnings("ignore:Local mode performs exact"),
]

DIMENSION = 16
EPOCH = "first life"
VIEW = View("main", EPOCH, "encoder-a", DIMENSION, "weights-a")
VENUES = ("", "Journal of Tides", "Proc. Lanterns", "ŽURNÁL/1")


async def loaded(store: Store, view: View) -> None:
    """Waits until an accelerated store answers from memory; before that the store behind it answers."""
    papers = store.points(view, Kind.PAPERS)
    if isinstance(papers, AcceleratedPoints):
        await asyncio.wait_for(papers.loaded.wait(), 20)


class Adapter:
    """Opens the same store repeatedly, like restarts of the service."""

    def __init__(self, build: Callable[[], Store]) -> None:
        self._build, self.store = build, build()

    async def open(self) -> Index:
        await self.store.open()
        for view in (await self.store.registry()).views.values():
            await loaded(self.store, view)
        return Index(self.store)

    async def restart(self) -> Index:
        await self.store.close()
        self.store = self._build()
        return await self.open()


def edge(folder: Path) -> Store:
    return EdgeStore(folder)


def edge_flat(folder: Path) -> Store:
    return AcceleratedStore(EdgeStore(folder), "flat")


def edge_sq8(folder: Path) -> Store:
    return AcceleratedStore(EdgeStore(folder), "sq8")


def edge_gpu(folder: Path) -> Store:
    return AcceleratedStore(EdgeStore(folder), "gpu")


class Lasting(AsyncQdrantClient):
    """Local mode in memory that outlives the store using it, like a server."""

    opened: ClassVar[dict[Path, AsyncQdrantClient]] = {}

    async def close(self, *args: object, **kwargs: object) -> None:
        pass


def qdrant_local(folder: Path) -> Store:
    return QdrantStore(lambda: Lasting.opened.setdefault(folder, Lasting(":memory:")))


def qdrant_local_flat(folder: Path) -> Store:
    return AcceleratedStore(qdrant_local(folder), "flat")


def qdrant_server(folder: Path) -> Store:
    """Each test has its own prefix, and so its own views."""
    url = os.environ["CITEWELL_TEST_QDRANT_URL"].split()[0]
    return QdrantStore(
        lambda: AsyncQdrantClient(url=url, prefer_grpc=True, check_compatibility=False),
        prefix=f"test-{folder.name}",
        exact=True,
    )


_BUILDS = (edge, edge_flat, edge_sq8, edge_gpu, qdrant_local, qdrant_local_flat, qdrant_server)
ADAPTERS = {build.__name__: build for build in _BUILDS}


def vector(seed: int) -> Vector:
    return np.random.default_rng(seed).standard_normal(DIMENSION).astype(np.float32)


def bag(seed: int) -> Terms:
    """A bag with a few frequent words, so that bags share some; every 11th bag is empty."""
    draw = np.random.default_rng(seed)
    words = np.unique(draw.zipf(1.3, 0 if seed % 11 == 10 else 30) % 97)
    return Terms.of({int(word) * 40_000_003: float(draw.integers(1, 9)) / 2 for word in words})


def words_query(seed: int, weight: float = 3.0) -> LexicalQuery:
    terms = bag(seed).values
    return LexicalQuery(Terms(bag(seed).ids, terms / max(terms.sum(), 1e-9)), weight, k1=1.2, b=0.4, mean_length=40.0)


def paper(number: int, **changes: object) -> PaperPoint:
    """An invented paper: dates of every precision, venues with special characters, every 7th vector a duplicate."""
    written = Paper(
        id=f"paper-{number:03}",
        title=f"On the tides of lantern {number}",
        abstract="Lanterns drift; we say why.",
        authors=("Ada Fen", "Bo Rill"),
        venue=VENUES[number % 4],
        published=(
            PartialDate(),
            PartialDate(1990 + number % 30),
            PartialDate(1990 + number % 30, 1 + number % 12),
            PartialDate(1990 + number % 30, 1 + number % 12, 1 + number % 28),
        )[number % 5 % 4],
        external_ids=(ExternalId("doi", f"10.1/{number}"),),
        in_degree=number,
        revision=1,
    )
    terms = bag(number)
    point = PaperPoint(
        written,
        version=1,
        profile=vector(number - number % 7),
        content=vector(1000 + number),
        terms=terms,
        length=float(terms.values.sum()) + number % 3,
    )
    return replace(point, **changes)  # type: ignore[arg-type]


def span(citing: int, cited: int, **changes: object) -> SpanPoint:
    point = SpanPoint(
        key=f"{citing}>{cited}",
        citing_id=f"paper-{citing:03}",
        cited_id=f"paper-{cited:03}",
        text=f"as lantern {citing} says of {cited}",
        version=1,
        vector=vector(2000 + citing),
        published=PartialDate(1990 + citing),
        revision=1,
        extractor_hash="whole context",
        terms=bag(citing),
        span_offset=3,
        span_length=7,
        span_terms=bag(citing + cited),
    )
    return replace(point, **changes)  # type: ignore[arg-type]


async def write(index: Index, *points: PaperPoint | SpanPoint, epoch: str = EPOCH, view: str = "") -> int:
    papers = [point for point in points if isinstance(point, PaperPoint)]
    spans = [point for point in points if isinstance(point, SpanPoint)]
    return await index.upsert(view, epoch, papers, spans)


def cosine(one: Vector, other: Vector) -> float:
    return float(unit(one).astype(np.float64) @ unit(other).astype(np.float64))


async def ids(index: Index, query: Vector, limit: int = 3000, **asked: object) -> list[str]:
    found = await index.search(Search(limit, query, **asked))  # type: ignore[arg-type]
    return [hit.paper.id for hit in found.papers]


years = st.sampled_from([0, 1990, 1995, 2001, 2010, 2019, 2020])
filters = st.builds(
    SearchFilter,
    published_before=st.one_of(
        st.just(PartialDate()),
        st.builds(PartialDate, st.integers(1989, 2021)),
        st.builds(PartialDate, st.integers(1989, 2021), st.integers(1, 12)),
        st.builds(PartialDate, st.integers(1989, 2021), st.integers(1, 12), st.integers(1, 28)),
    ),
    year_from=years,
    year_to=years,
    venues=st.frozensets(st.sampled_from([*VENUES, "nowhere"]), max_size=3),
    excluded_ids=st.frozensets(st.integers(0, 130).map(lambda number: f"paper-{number:03}"), max_size=40),
)
