"""The rows of a bulk build, made by its functions without Spark, equal those of a ledger that got events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from citewell.bulk.loading import load_bulk
from citewell.bulk.manifest import Manifest
from citewell.bulk.summing import PARTS_AT_ONCE, summed
from citewell.bulk.telling import encoded, tell, with_vectors
from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.views import PointForm
from citewell.scholarly.contexts import MaskedContext
from citewell.scholarly.dates import UNKNOWN_DATE, PartialDate
from citewell.scholarly.publications import Publication
from citewell.types.v1 import publication_pb2
from tests.ledger_suite import WEIGHTS, World
from tests.ledger_world import HashEncoder, shown_papers, stored_said, stored_sums

Row = dict[str, Any]


def _inputs() -> list[Row]:
    """Papers of several years; some cite twice, themselves, without a reason, or what nobody published."""
    papers = []
    for number in range(24):
        said = [
            {"cited_id": f"p{cited}", "text": f"As {word} TARGETCIT of {cited} shows.", "group_size": 1}
            for cited in range(max(0, number - 4), number)
            for word in (("method", "result") if (number + cited) % 3 else ("method",))
        ]
        papers.append(
            {
                "id": f"p{number}",
                "title": f"Paper {number}",
                "abstract": f"On topic {number % 5}." if number % 2 else "",
                "published": None if number == 7 else f"{2000 + number // 6}-0{1 + number % 9}",
                "contexts": said,
                "citations": [f"p{number}", "never"] if number % 5 == 0 else [],
            }
        )
    return papers


def _publication(paper: Row) -> Publication:
    return Publication(
        paper["id"],
        1,
        paper["title"],
        paper["abstract"],
        published=PartialDate.parse(paper["published"]) if paper["published"] else UNKNOWN_DATE,
        reference_ids=tuple(paper["citations"]),
        masked_contexts=tuple(
            MaskedContext(each["text"], each["cited_id"], each["group_size"]) for each in paper["contexts"]
        ),
    )


def _built(folder: Path) -> Path:
    """What the Spark job writes, made in this process."""
    encoder = HashEncoder()
    told = [tell(paper) for paper in _inputs()]
    texts = {text["key"]: text for row in told for text in row["texts"]}
    made = {row["key"]: row for row in encoded(list(texts.values()), encoder)}
    edges = [{"citing": row["id"], "text_key": row["text_key"], **edge} for row in told for edge in row["edges"]]
    rows = [
        {**{name: edge[name] for name in ("cited", "year", "citing")}, "content": at == 0, **made[key]}
        for edge in edges
        for at, key in enumerate((edge["text_key"], *edge["contexts"]))
    ]
    rows.sort(key=lambda row: (row["cited"], row["year"], row["citing"]))
    known = {row["id"] for row in told}
    stubs = [{"id": cited} for cited in sorted({edge["cited"] for edge in edges} - known)]
    columns = ("id", "revision", "content_hash", "text_key", "publication")
    papers = [{name: row[name] for name in columns} for row in told]
    sums = list(summed(rows, encoder.dimension))
    for name, table in (
        ("papers", papers),
        ("stubs", stubs),
        ("edges", edges),
        ("texts", list(made.values())),
        ("sums", sums),
    ):
        (folder / name).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(table), folder / name / "part.parquet")
    Manifest(encoder.model_hash, encoder.model_id, encoder.dimension, len(papers), len(edges), len(made), 0, {}).write(
        folder
    )
    return folder


@pytest.fixture(scope="module")
def incremental(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(f"sqlite:///{tmp_path_factory.mktemp('events')}/ledger.db")
    for paper in reversed(_inputs()):
        world.publish(_publication(paper))
    world.check()
    return world


def test_a_bulk_load_is_the_state_that_events_make(tmp_path: Path, incremental: World) -> None:
    url, built = f"sqlite:///{tmp_path}/ledger.db", _built(tmp_path / "built")
    database = Database(url)
    _, view = load_bulk(database, built, WEIGHTS, PointForm())
    assert view.serving
    sums = stored_sums(database, "hash-6")
    assert sums == stored_sums(incremental.database, "hash-6")
    assert {year for _, year in sums} == {-1, 0, 2000, 2001, 2002, 2003}
    assert stored_said(database) == stored_said(incremental.database)
    database.close()
    world = World(url)
    world.model = incremental.model
    world.check()  # projects; compares profiles, words and spans with the reference model
    shown = [shown_papers(points.values()) for each in (world, incremental) for points in each.index.papers.values()]
    assert shown[0].keys() == shown[1].keys()


def test_a_paper_cited_more_often_than_fits_in_memory_at_once_is_added_up_all_the_same() -> None:
    encoder, count = HashEncoder(), 2 * PARTS_AT_ONCE + 7
    paper = encoded([{"key": b"k", "title": "A title", "body": ""}], encoder)[0]
    context = encoded([{"key": b"c", "title": None, "body": "as TARGETCIT showed"}], encoder)[0]
    common = {"cited": "famous", "year": 2001}
    rows = (
        {**common, "citing": f"p{number:05}", "content": content, **(paper if content else context)}
        for number in range(count)
        for content in (True, False)
    )
    of_year, total = summed(rows, encoder.dimension)
    assert of_year["count"] == count
    assert total["count"] is None  # one year needs no total
    assert total["said_counts"] == of_year["said_counts"]
    vector = np.frombuffer(paper["vector"], "<i4").astype(np.int64)
    assert np.array_equal(np.frombuffer(of_year["contents"], "<i8"), count * vector)
    assert set(np.frombuffer(of_year["said_counts"], "<i4").tolist()) == {count}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"title": ""}, "title"),
        ({"published": "yesterday"}, "yesterday"),
        ({"id": ""}, "paper_id"),
        ({"id": None}, "paper_id"),
        ({"contexts": [{"cited_id": "p1", "text": None, "group_size": 1}]}, "masked_contexts[0]"),
        ({"contexts": [{"cited_id": None, "text": "as TARGETCIT says", "group_size": None}]}, "masked_contexts[0]"),
        ({"repeat": 2, "title": "Another"}, "id 'p3' is given by more than one row; this one, with title 'Another'"),
    ],
)
def test_a_paper_that_cannot_be_used_is_told_with_its_reason(changed: Row, told: str) -> None:
    row = tell({**_inputs()[3], **changed})
    assert told in row["reject"]
    assert row.keys() == {"id", "reject"}


def test_an_author_without_a_name_is_left_out() -> None:
    row = tell({**_inputs()[3], "authors": ["Ada Brook", None, ""]})
    assert row["reject"] == ""
    publication = publication_pb2.Publication.FromString(row["publication"])
    assert list(publication.authors) == ["Ada Brook"]


def test_supplied_vectors_are_rounded_as_the_encoder_s() -> None:
    encoder = HashEncoder()
    row = {"key": b"k", "title": "A title", "body": ""}
    (made,) = encoded([row], encoder)
    vector = encoder.encode([encoder.paper_text("A title", "")])[0].tolist()
    assert with_vectors([{**row, "given": vector}], 6) == [made]
    for given in (None, vector[:-1]):
        with pytest.raises(ValueError, match="expected 6"):
            with_vectors([{**row, "given": given}], 6)
