"""A data set in citewell's formats as Parquet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from citewell.corpora.readers import Reject, read_contexts, read_papers

ROWS_AT_ONCE = 10_000
PAPERS = pa.schema(
    [
        ("id", pa.string()),
        ("title", pa.string()),
        ("abstract", pa.string()),
        ("venue", pa.string()),
        ("published", pa.string()),
    ]
)
CONTEXTS = pa.schema(
    [("citing_id", pa.string()), ("cited_id", pa.string()), ("text", pa.string()), ("group", pa.int32())]
)


def convert(folder: Path, out: Path) -> tuple[int, int, int]:
    """Writes papers and contexts; returns how many there are of each, and how many records were left out."""
    rejects: list[Reject] = []
    papers = (
        asdict(paper) | {"published": str(paper.published) if paper.published.known else None}
        for paper in read_papers(folder, rejects.append)
    )
    contexts = (asdict(context) for context in read_contexts(folder, rejects.append))
    counts = (_write(out / "papers", papers, PAPERS), _write(out / "contexts", contexts, CONTEXTS))
    return *counts, len(rejects)


def _write(folder: Path, records: Iterable[dict[str, Any]], schema: pa.Schema) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    stream, count = iter(records), 0
    with pq.ParquetWriter(folder / "part-0.parquet", schema) as writer:
        for some in _chunks(stream):
            writer.write_table(
                pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in some], schema)
            )
            count += len(some)
    return count


def _chunks(stream: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while some := list(islice(stream, ROWS_AT_ONCE)):
        yield some
