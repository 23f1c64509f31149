"""A bulk build by Spark equals the ledger that the same publications made one by one, bit for bit."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from citewell.bulk.converting import convert
from citewell.bulk.embedding import Embedding
from citewell.bulk.job import Resources, build, session, told_rejects
from citewell.bulk.loading import load_bulk
from citewell.bulk.manifest import read_manifest
from citewell.cli import app
from citewell.corpora.spilling import Corpus
from citewell.demo.corpus import write as write_demo
from citewell.profiler import doctor
from citewell.profiler.ledger import schema
from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.ledger import IncomingEvent
from citewell.profiler.ledger.rules import SourcedEvent
from citewell.profiler.ledger.views import PointForm, serving_view
from citewell.runtime.errors import FailedPrecondition
from citewell.scholarly.publications import Event, Publication
from tests.ledger_suite import WEIGHTS, World
from tests.ledger_world import shown_papers, shown_spans, stored_said, stored_sums
from tests.servers.missing import missing

ROOT = Path(__file__).parents[2]
PAPERS = 200
# A job of seconds is not worth optimising: compiling would take most of the time.
QUICK = (
    ("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
    ("spark.sql.codegen.wholeStage", "false"),
    ("spark.sql.codegen.factoryMode", "NO_CODEGEN"),
)

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def publications(tmp_path_factory: pytest.TempPathFactory) -> list[Publication]:
    """The demo world, with bare references as well."""
    folder = tmp_path_factory.mktemp("demo")
    write_demo(PAPERS, 7, folder / "set")
    corpus = Corpus(folder / "set", folder / "state.sqlite")
    corpus.spill(lambda: None)
    bodies = [loadable.event.body for loadable in corpus.publications()]
    corpus.close(forget=True)
    told = [body for body in bodies if isinstance(body, Publication)]
    return [replace(body, reference_ids=_references(body, number)) for number, body in enumerate(told)]


def _references(body: Publication, number: int) -> tuple[str, ...]:
    """Every seventh paper also cites itself, a paper that nobody published, and a paper without saying why."""
    return tuple(sorted({body.paper_id, "elsewhere", f"never-{number % 3}"})) if number % 7 == 0 else ()


@pytest.fixture(scope="module")
def built(publications: list[Publication], tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("java") is None:
        missing("Spark needs Java 17: apt-get install openjdk-17-jre-headless")
    folder = tmp_path_factory.mktemp("bulk")
    write_demo(PAPERS, 7, folder / "set")
    convert(folder / "set", folder / "in")
    rows = [(body.paper_id, cited) for body in publications for cited in body.reference_ids]
    columns = {name: [row[at] for row in rows] for at, name in enumerate(("citing_id", "cited_id"))}
    (folder / "in" / "citations").mkdir()
    pq.write_table(pa.table(columns), folder / "in" / "citations" / "part.parquet")
    again = publications[3]
    bad = pa.table(
        {
            "id": ["bad", again.paper_id, again.paper_id],
            "title": ["", "Another title", ""],
            "abstract": ["", "", f"Longer: {again.abstract}"],
            "venue": ["", "", ""],
            "published": ["2020", "2020", "2020"],
        }
    )
    pq.write_table(bad, folder / "in" / "papers" / "bad.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'services'}")
        spark = session(Resources("local[1]", partitions=2, driver_memory="1g", batch=64, settings=QUICK))
        try:
            build(spark, folder / "in", folder / "out", Embedding("hash", maker="tests.bulk_encoder:make"))
        finally:
            spark.stop()
    return folder / "out"


@pytest.fixture(scope="module")
def incremental(publications: list[Publication], tmp_path_factory: pytest.TempPathFactory) -> World:
    """The same publications as events, in random order and batches."""
    world = World(f"sqlite:///{tmp_path_factory.mktemp('events')}/ledger.db")
    shuffled = random.Random(5).sample(publications, len(publications))
    for start in range(0, len(shuffled), 37):
        world.publish(*shuffled[start : start + 37])
    world.check()
    return world


class _Loaded(World):
    """A world over a ledger that a bulk build filled, with a projector as any profiler has."""

    def __init__(self, url: str, folder: Path) -> None:
        database = Database(url)
        load_bulk(database, folder, WEIGHTS, PointForm())
        database.close()
        super().__init__(url)


@pytest.fixture(scope="module")
def loaded(built: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    world = _Loaded(f"sqlite:///{tmp_path_factory.mktemp('loaded')}/ledger.db", built)
    world.project()
    return world


def _rows(database: Database, table: sa.Table, *left_out: str) -> list[tuple[object, ...]]:
    columns = [column for column in table.c if column.name not in left_out]
    with database.reading() as connection:
        return [tuple(row) for row in connection.execute(sa.select(*columns).order_by(*table.primary_key))]


def test_sums_and_counts_are_equal_bit_for_bit(loaded: World, incremental: World) -> None:
    sums = stored_sums(loaded.database, "hash-6")
    assert sums == stored_sums(incremental.database, "hash-6")
    assert any(year == -1 for _, year in sums)
    assert any(count > 5 for count, _, _ in sums.values())
    assert stored_said(loaded.database) == stored_said(incremental.database)


@pytest.mark.parametrize(
    ("table", "left_out"),
    [
        (schema.text_vectors, ()),
        (schema.text_terms, ()),
        (schema.edges, ()),
        (schema.papers, ("version", "last_event")),  # how often a paper was touched, and by which event
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_other_rows_are_equal(
    loaded: World, incremental: World, table: sa.Table, left_out: tuple[str, ...]
) -> None:
    assert len(_rows(loaded.database, table)) > 100
    assert _rows(loaded.database, table, *left_out) == _rows(incremental.database, table, *left_out)


def test_the_index_shows_the_same_papers_profiles_words_and_spans(loaded: World, incremental: World) -> None:
    shown = []
    for world in (loaded, incremental):
        with world.database.reading() as connection:
            view = serving_view(connection)
        shown.append(
            (shown_papers(world.index.papers[view.name].values()), shown_spans(world.index.spans[view.name].values()))
        )
    (papers, spans), (other_papers, other_spans) = shown
    assert papers.keys() == other_papers.keys()
    for key, point in papers.items():
        np.testing.assert_array_equal(point.profile, other_papers[key].profile)
        assert point.terms == other_papers[key].terms
        assert point.paper.in_degree == other_papers[key].paper.in_degree
    assert spans.keys() == other_spans.keys()


async def test_doctor_finds_nothing(loaded: World) -> None:
    report = await doctor.check_profiles(loaded.database, loaded.index, 0, 0, repair=False)
    assert report.checked > PAPERS
    assert report.faults == []


async def test_publishing_goes_on_from_there(built: Path, publications: list[Publication], tmp_path: Path) -> None:
    world = _Loaded(f"sqlite:///{tmp_path}/ledger.db", built)
    before = stored_sums(world.database, "hash-6")
    citing = next(body for body in reversed(publications) if body.masked_contexts)
    bodies = publications[3], replace(citing, revision=2, title="Changed", masked_contexts=())
    events = [IncomingEvent(SourcedEvent(Event(f"event-{number}", body))) for number, body in enumerate(bodies)]
    results = await asyncio.to_thread(world.ledger.apply, events)
    assert [result.outcome.value for result in results] == ["DUPLICATE", "APPLIED"]
    assert stored_sums(world.database, "hash-6") != before
    await asyncio.to_thread(world.project)
    report = await doctor.check_profiles(world.database, world.index, 0, 0, repair=False)
    assert report.faults == []


def test_what_was_left_out_is_told(built: Path, publications: list[Publication]) -> None:
    """Of the rows with one id the one with a title and the longest abstract is used; the others are told."""
    manifest = read_manifest(built)
    assert (manifest.papers, manifest.rejected, manifest.dimension) == (PAPERS, 3, 6)
    bad, *repeats = sorted(told_rejects(built), key=lambda reject: (reject["id"] != "bad", reject["reject"]))
    assert bad["id"] == "bad"
    assert "title" in bad["reject"]
    assert {reject["id"] for reject in repeats} == {publications[3].paper_id}
    for reject, title in zip(repeats, ("", "Another title"), strict=True):
        assert f"is given by more than one row; this one, with title {title!r}, is not used" in reject["reject"]


def test_numbers_as_ids_and_years_are_read_and_null_contexts_are_told(tmp_path: Path) -> None:
    source = tmp_path / "in"
    tables = {
        "papers": {"id": [1, 2, 3], "title": ["A", "B", "C"], "year": [2000.0, None, float("nan")]},
        "contexts": {"citing_id": [1, 3], "cited_id": [2, 1], "text": ["as TARGETCIT says", None]},
        "citations": {"citing_id": [2], "cited_id": [1]},
    }
    for name, columns in tables.items():
        (source / name).mkdir(parents=True)
        pq.write_table(pa.table(columns), source / name / "part.parquet")
    spark = session(Resources("local[1]", partitions=2, driver_memory="1g", batch=64, settings=QUICK))
    try:
        manifest = build(spark, source, tmp_path / "out", Embedding("hash", maker="tests.bulk_encoder:make"))
    finally:
        spark.stop()
    assert (manifest.papers, manifest.citations, manifest.rejected) == (2, 2, 1)
    [reject] = told_rejects(tmp_path / "out")
    assert reject["id"] == "3"
    edges = pq.read_table(tmp_path / "out" / "edges").to_pylist()
    assert {(each["citing"], each["cited"], each["year"]) for each in edges} == {("1", "2", 2000), ("2", "1", 0)}


def test_a_load_killed_half_way_is_repeated(built: Path, tmp_path: Path, incremental: World) -> None:
    database = Database(f"sqlite:///{tmp_path}/ledger.db")
    written: list[str] = []

    def kill(table: str, done: int, count: int) -> None:
        written.append(table)
        if table == "edges":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_bulk(database, built, WEIGHTS, PointForm(), kill)
    assert written
    with pytest.raises(FailedPrecondition, match="repeat `citewell load --bulk`"):  # as a profiler does at start
        World(f"sqlite:///{tmp_path}/ledger.db")
    other = tmp_path / "other"
    shutil.copytree(built, other)
    with pytest.raises(FailedPrecondition, match="part of another build"):
        load_bulk(database, other, WEIGHTS, PointForm())
    _, view = load_bulk(database, built, WEIGHTS, PointForm())
    assert view.serving
    assert stored_sums(database, "hash-6") == stored_sums(incremental.database, "hash-6")
    with pytest.raises(FailedPrecondition, match="the ledger holds papers"):
        load_bulk(database, built, WEIGHTS, PointForm())
    database.close()


def test_a_ledger_that_serves_an_empty_view_gets_a_second_one(built: Path, tmp_path: Path) -> None:
    world = World(f"sqlite:///{tmp_path}/ledger.db")
    with world.database.reading() as connection:
        blue = serving_view(connection).name
    _, green = load_bulk(world.database, built, WEIGHTS, PointForm())
    assert not green.serving
    world.restart_projector()
    world.project()
    with world.database.reading() as connection:
        assert serving_view(connection).name == green.name != blue
    assert len(shown_papers(world.index.papers[green.name].values())) == PAPERS


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (lambda folder: (folder / "manifest.json").unlink(), "holds no manifest.json"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "is no manifest of a bulk build"),
        (
            lambda folder: (folder / "manifest.json").write_text(
                (folder / "manifest.json").read_text().replace('"format": 1', '"format": 99')
            ),
            "has format 99",
        ),
    ],
)
def test_the_command_says_what_is_wrong_with_a_build(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Callable[[Path], object], told: str
) -> None:
    shutil.copytree(built, tmp_path / "built")
    broken(tmp_path / "built")
    monkeypatch.setenv("CITEWELL_PROFILER__LEDGER_URL", f"sqlite:///{tmp_path}/ledger.db")
    result = CliRunner().invoke(app, ["load", "--bulk", str(tmp_path / "built")])
    assert result.exit_code == 1
    assert told in " ".join(result.output.split())


def test_the_command_makes_no_ledger_that_nobody_named(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["load", "--bulk", str(built)])
    assert "CITEWELL_PROFILER__LEDGER_URL is not set" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_the_command_loads_a_build(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CITEWELL_PROFILER__LEDGER_URL", f"sqlite:///{tmp_path}/ledger.db")
    result = CliRunner().invoke(app, ["load", "--bulk", str(built)])
    assert result.exit_code == 0, result.output
    told = " ".join(result.output.split())
    assert f"{PAPERS} papers" in told
    assert f"{tmp_path}/ledger.db" in result.output.replace("\n", "")
    assert "serves when a profiler has filled the index" in told
