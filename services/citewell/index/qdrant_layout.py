"""The collections of a view on a Qdrant server: their names, vectors, payload indexes and limits."""

from __future__ import annotations

from dataclasses import dataclass

from qdrant_client import models

from citewell.index.points import (
    CONTENT,
    INTEGERS,
    LEXICAL,
    PAPER_KEYWORDS,
    PROFILE,
    SCHEMA_VERSION,
    SPAN,
    SPAN_KEYWORDS,
)
from citewell.index.qdrant_points import OVERSAMPLING
from citewell.index.ranking import MOST_HITS
from citewell.index.store import Kind
from citewell.index.views import View

CHANGES = "changes"
_FIRST_NUMBERED_SCHEMA = 3


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """How collections are distributed. Qdrant's default is one shard and one copy."""

    shards: int = 1
    replicas: int = 1
    write_consistency: int = 1
    strict: bool = True


ONE_NODE = ClusterShape()


@dataclass(frozen=True, slots=True)
class Layout:
    """What one collection of a view consists of."""

    part: str
    vectors: dict[str, models.VectorParams]
    sparse: dict[str, models.SparseVectorParams]
    indexes: dict[str, models.PayloadSchemaType]
    """Payload fields with an index: strict mode refuses filters on any other."""
    one_shard: bool = False


def layouts(view: View) -> tuple[Layout, Layout, Layout]:
    """The collections of a view in the order of their creation. Papers come last, because they define the view."""
    on_disk = {"size": view.dimension, "distance": models.Distance.COSINE, "on_disk": True}
    no_graph = models.HnswConfigDiff(m=0)
    spans = models.VectorParams(**on_disk, hnsw_config=no_graph, quantization_config=_int8(in_memory=False))
    profile = models.VectorParams(
        size=view.dimension, distance=models.Distance.COSINE, quantization_config=_int8(in_memory=True)
    )
    content = models.VectorParams(**on_disk, hnsw_config=no_graph)
    integers = dict.fromkeys((*INTEGERS, "version"), models.PayloadSchemaType.INTEGER)
    keyword = models.PayloadSchemaType.KEYWORD
    return (
        Layout(CHANGES, {}, {}, {"number": models.PayloadSchemaType.INTEGER}, one_shard=True),
        Layout(Kind.SPANS.value, {SPAN: spans}, {}, dict.fromkeys(SPAN_KEYWORDS, keyword) | integers),
        Layout(
            Kind.PAPERS.value,
            {PROFILE: profile, CONTENT: content},
            {LEXICAL: models.SparseVectorParams()},
            dict.fromkeys(PAPER_KEYWORDS, keyword) | integers,
        ),
    )


def collection_name(prefix: str, view: str, part: str) -> str:
    """A later schema has other names, so that creating a view never has to delete one of an earlier schema."""
    schema = "" if SCHEMA_VERSION < _FIRST_NUMBERED_SCHEMA else f"-{SCHEMA_VERSION}"
    return f"{prefix}-{view}-{part}{schema}"


def _int8(*, in_memory: bool) -> models.ScalarQuantization:
    config = models.ScalarQuantizationConfig(type=models.ScalarType.INT8, quantile=0.99, always_ram=in_memory)
    return models.ScalarQuantization(scalar=config)


STRICT = models.StrictModeConfig(
    enabled=True,
    max_query_limit=MOST_HITS,
    unindexed_filtering_retrieve=False,
    unindexed_filtering_update=False,
    search_max_oversampling=OVERSAMPLING,
    search_allow_exact=True,
    upsert_max_batchsize=1_000,
    filter_max_conditions=20,
    condition_max_size=10_000,
)
"""Limits that citewell's own requests never exceed; they stop mistakes."""
