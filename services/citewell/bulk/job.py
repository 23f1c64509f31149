"""The Spark job: Parquet in, the rows of a ledger as Parquet out.

    papers ─┐ group by citing   ┌▶ texts ─ distinct, encode in batches ─▶ texts/
    contexts├──────────────────▶ tell ─▶ papers/, edges/      │
    citations┘                  └▶ citation texts ─ join ─────┘─ shuffle by cited paper, sort, add up ─▶ sums/

Every sum is over integers, so it equals the incremental one bit for bit, however the rows are spread.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, StringType
from pyspark.sql.window import WindowSpec

from citewell.bulk.embedding import Embedding, encoder_of
from citewell.bulk.manifest import Manifest
from citewell.bulk.summing import summed
from citewell.bulk.telling import encoded, tell, with_vectors
from citewell.scholarly.dates import LAST_YEAR

TOLD = pa.schema(
    [
        ("id", pa.string()),
        ("reject", pa.string()),
        ("revision", pa.int64()),
        ("content_hash", pa.string()),
        ("text_key", pa.binary()),
        ("publication", pa.binary()),
        ("texts", pa.list_(pa.struct([("key", pa.binary()), ("title", pa.string()), ("body", pa.string())]))),
        (
            "edges",
            pa.list_(
                pa.struct(
                    [
                        ("cited", pa.string()),
                        ("year", pa.int32()),
                        ("day", pa.int32()),
                        ("contexts", pa.list_(pa.binary())),
                    ]
                )
            ),
        ),
    ]
)
TEXTS = pa.schema([(name, pa.binary()) for name in ("key", "vector", "terms", "title_counts", "body_counts")])
SUMS = pa.schema(
    [
        ("cited", pa.string()),
        ("year", pa.int32()),
        ("contexts", pa.binary()),
        ("contents", pa.binary()),
        ("count", pa.int64()),
        ("said_size", pa.int32()),
        ("said_terms", pa.binary()),
        ("said_counts", pa.binary()),
    ]
)
ROWS_OUT = 1024


@dataclass(frozen=True, slots=True)
class Resources:
    """How a local session runs; a cluster's own settings win where spark-submit sets them."""

    master: str = "local[*]"
    partitions: int = 8
    driver_memory: str = "2g"
    batch: int = 1024
    """Rows in one Arrow batch, and texts encoded at once."""
    settings: tuple[tuple[str, str], ...] = ()
    """More settings of Spark."""


def session(resources: Resources) -> SparkSession:
    """A session for the job; ends with `stop`."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("citewell bulk")
    for name, value in resources.settings:
        builder = builder.config(name, value)
    made: SparkSession = (
        builder.master(resources.master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", resources.driver_memory)
        .config("spark.sql.shuffle.partitions", resources.partitions)
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", resources.batch)
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("ERROR")
    return made


def build(spark: SparkSession, source: Path, out: Path, embedding: Embedding) -> Manifest:
    """Builds the ledger's rows from `source`/papers, contexts and citations, of which the last two may be absent.

    Vectors in `source`/vectors (key, given) are used instead of the encoder, if that folder is there.
    """
    encoder = encoder_of(embedding)
    dimension = encoder.dimension
    seconds: dict[str, float] = {}
    stage = _Stage(spark, seconds)
    told = out / "told"
    with stage("tell"):
        _papers(spark, source).mapInArrow(_telling, from_arrow_schema(TOLD)).write.mode("overwrite").parquet(str(told))
    rows = spark.read.parquet(str(told))
    good = rows.filter(sql.col("reject") == "")
    with stage("write"):
        good.select("id", "revision", "content_hash", "text_key", "publication").write.mode("overwrite").parquet(
            str(out / "papers")
        )
        edges = good.select(sql.col("id").alias("citing"), "text_key", sql.explode("edges").alias("edge"))
        edges = edges.select("citing", "text_key", "edge.*")
        edges.write.mode("overwrite").parquet(str(out / "edges"))
        edges.select(sql.col("cited").alias("id")).distinct().join(good.select("id"), "id", "left_anti").write.mode(
            "overwrite"
        ).parquet(str(out / "stubs"))
    with stage("encode"):
        texts = good.select(sql.explode("texts").alias("text")).select("text.*").dropDuplicates(["key"])
        if (source / "vectors").exists():
            texts = texts.join(spark.read.parquet(str(source / "vectors")), "key", "left")
            made = texts.mapInArrow(_Given(dimension), from_arrow_schema(TEXTS))
        else:
            made = texts.mapInArrow(_Encoding(embedding), from_arrow_schema(TEXTS))
        made.write.mode("overwrite").parquet(str(out / "texts"))
    with stage("sum"):
        sorted_texts = _citation_texts(spark, out).repartition("cited").sortWithinPartitions("cited", "year", "citing")
        sums = sorted_texts.mapInArrow(_Summing(dimension), from_arrow_schema(SUMS))
        sums.write.mode("overwrite").parquet(str(out / "sums"))
    rejected = rows.filter(sql.col("reject") != "").select("id", "reject")
    rejected.write.mode("overwrite").json(str(out / "rejects"))
    count = {name: spark.read.parquet(str(out / name)).count() for name in ("papers", "edges", "texts")}
    manifest = Manifest(
        encoder.model_hash,
        encoder.model_id,
        dimension,
        papers=count["papers"],
        citations=count["edges"],
        texts=count["texts"],
        rejected=rejected.count(),
        seconds=seconds,
    )
    manifest.write(out)
    return manifest


class _Stage:
    """Measures stages in wall seconds, and names them in Spark's event log and pages."""

    def __init__(self, spark: SparkSession, seconds: dict[str, float]) -> None:
        self._spark, self._seconds, self._name, self._began = spark, seconds, "", 0.0

    def __call__(self, name: str) -> _Stage:
        self._name = name
        return self

    def __enter__(self) -> None:
        self._spark.sparkContext.setJobDescription(self._name)
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._name] = round(time.monotonic() - self._began, 3)


def _papers(spark: SparkSession, source: Path) -> DataFrame:
    """One row a paper with all that it says of others."""
    papers = spark.read.parquet(str(source / "papers"))
    for name, kind in (("abstract", StringType()), ("venue", StringType()), ("authors", ArrayType(StringType()))):
        if name not in papers.columns:
            papers = papers.withColumn(name, sql.lit(None).cast(kind))
    if "published" not in papers.columns:
        # A column of whole numbers of which some are missing is often stored as floats.
        year = sql.col("year")
        if _is_float(papers, "year"):
            year = sql.when(year.between(0, LAST_YEAR), year.cast("long"))
        papers = papers.withColumn("published", year.cast("string"))
    texts = [sql.col(name).cast("string") for name in ("id", "title", "abstract", "venue", "published")]
    papers = papers.select(*texts, sql.col("authors").cast("array<string>"))
    papers = papers.withColumn("repeat", sql.row_number().over(_rows_of_an_id()))
    if (source / "contexts").exists():
        contexts = spark.read.parquet(str(source / "contexts"))
        group = sql.col("group") if "group" in contexts.columns else sql.lit(0)
        told = [sql.col(name).cast("string").alias(name) for name in ("cited_id", "text")]
        said = sql.struct(*told, group.cast("int").alias("group_size"))
        grouped = contexts.groupBy(sql.col("citing_id").cast("string").alias("id")).agg(
            sql.sort_array(sql.collect_list(said)).alias("contexts")
        )
        papers = papers.join(grouped, "id", "left")
    if (source / "citations").exists():
        citations = spark.read.parquet(str(source / "citations"))
        cited = sql.collect_set(sql.col("cited_id").cast("string")).alias("citations")
        bare = citations.groupBy(sql.col("citing_id").cast("string").alias("id")).agg(cited)
        papers = papers.join(bare, "id", "left")
    return papers


def _is_float(rows: DataFrame, name: str) -> bool:
    return rows.schema[name].dataType.typeName() in ("float", "double")


def _rows_of_an_id() -> WindowSpec:
    """Rows of one id, the one that is used first: it has a title, and the longest abstract. Text breaks ties."""
    untitled = sql.trim(sql.coalesce("title", sql.lit(""))) == ""
    length = sql.coalesce(sql.length("abstract"), sql.lit(0))
    return Window.partitionBy("id").orderBy(untitled, length.desc(), "abstract", "title", "venue", "published")


def _citation_texts(spark: SparkSession, out: Path) -> DataFrame:
    """A row for every text of every citation: the citing paper's own, and each context."""
    edges, texts = spark.read.parquet(str(out / "edges")), spark.read.parquet(str(out / "texts"))
    own = sql.array(sql.struct(sql.col("text_key").alias("key"), sql.lit(True).alias("content")))
    said = sql.transform("contexts", lambda key: sql.struct(key.alias("key"), sql.lit(False).alias("content")))
    exploded = edges.select("cited", "year", "citing", sql.explode(sql.concat(own, said)).alias("text"))
    exploded = exploded.select("cited", "year", "citing", "text.*")
    words = [sql.when(~sql.col("content"), sql.col(name)).alias(name) for name in ("terms", "body_counts")]
    return exploded.join(texts, "key").select("cited", "year", "citing", "content", "vector", *words)


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.to_pylist()


def _batch(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema)


def _telling(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield _batch([tell(paper) for paper in batch.to_pylist()], TOLD)


@dataclass(frozen=True)
class _Encoding:
    embedding: Embedding

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        encoder = encoder_of(self.embedding)
        for batch in batches:
            yield _batch(encoded(batch.to_pylist(), encoder), TEXTS)


@dataclass(frozen=True)
class _Given:
    dimension: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _batch(with_vectors(batch.to_pylist(), self.dimension), TEXTS)


@dataclass(frozen=True)
class _Summing:
    dimension: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[dict[str, Any]] = []
        for row in summed(_rows(batches), self.dimension):
            held.append(row)
            if len(held) == ROWS_OUT:
                yield _batch(held, SUMS)
                held = []
        if held:
            yield _batch(held, SUMS)


def told_rejects(out: Path) -> Iterator[dict[str, str]]:
    """The papers that were left out, with the reason."""
    for file in sorted((out / "rejects").glob("*.json")):
        for line in file.read_text("utf-8").splitlines():
            yield json.loads(line)
