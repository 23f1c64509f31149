"""One suite for every store adapter: Index behaves the same with every engine."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import grpc
import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from qdrant_client import AsyncQdrantClient
from qdrant_client.http.exceptions import UnexpectedResponse

from citewell.index import qdrant_points
from citewell.index import qdrant_server as qdrant_server_module
from citewell.index.accelerator import AcceleratedPoints, AcceleratedStore
from citewell.index.faiss_index import gpu_is_there
from citewell.index.hybrid import named
from citewell.index.index import MAX_LIMIT, Index
from citewell.index.points import CONTENT, HYBRID, LEXICAL, PaperPoint, SpanPoint, Vector, point_id, unit
from citewell.index.qdrant_edge import EdgeStore
from citewell.index.qdrant_points import ChangeLog, ask
from citewell.index.qdrant_server import QdrantStore
from citewell.index.queries import EvidenceSearch, Search
from citewell.index.store import Changes, ChangesForgottenError, Kind, Nearest, Store
from citewell.index.views import View
from citewell.runtime import deadlines
from citewell.runtime.errors import FailedPrecondition, InvalidField, NotFound, Unavailable
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.lexical import LexicalQuery, Terms, contributions, lexical_score
from citewell.scholarly.papers import ExternalId, Paper, SearchFilter
from tests.memory_folder import memory_folder

# Warnings of the client's local mode; a server supports both features.
pytestmark = [
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
    url = os.environ["CITEWELL_TEST_QDRANT_URL"]
    return QdrantStore(lambda: AsyncQdrantClient(url=url, prefer_grpc=True), prefix=f"test-{folder.name}", exact=True)


_BUILDS = (edge, edge_flat, edge_sq8, edge_gpu, qdrant_local, qdrant_local_flat, qdrant_server)
ADAPTERS = {build.__name__: build for build in _BUILDS}


_MARKS = {
    "qdrant_server": [pytest.mark.qdrant_server],
    "edge_gpu": [pytest.mark.gpu, pytest.mark.skipif(not gpu_is_there(), reason="FAISS finds no GPU")],
}


@pytest.fixture(params=[pytest.param(name, marks=_MARKS.get(name, ())) for name in ADAPTERS])
async def adapter(request: pytest.FixtureRequest) -> AsyncIterator[Adapter]:
    with memory_folder() as folder:
        adapter = Adapter(lambda: ADAPTERS[request.param](folder))
        yield adapter
        if request.param == "qdrant_server":
            for name in (await adapter.store.registry()).views:
                await adapter.store.drop(name)
        await adapter.store.close()


@pytest.fixture
async def index(adapter: Adapter) -> Index:
    index = await adapter.open()
    await index.create_view(VIEW)
    await index.serve_view(VIEW.name)
    await loaded(adapter.store, VIEW)
    return index


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


DESCENDING = Terms(np.array([5, 3], np.uint32), np.ones(2, np.float32))


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


words_fields = st.sampled_from([HYBRID, LEXICAL])


@pytest.fixture
async def stocked(index: Index) -> Index:
    """120 papers, and for each of the first ten the contexts of twenty citing papers."""
    await write(index, *map(paper, range(120)))
    await write(index, *(span(citing, cited) for cited in range(10) for citing in range(20, 40)))
    return index


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(search_filter=filters, seed=st.integers(0, 50), limit=st.integers(1, 140))
async def test_a_search_finds_the_best_of_what_the_filter_admits(
    stocked: Index, search_filter: SearchFilter, seed: int, limit: int
) -> None:
    corpus = {point.paper.id: point for point in map(paper, range(120))}
    query = vector(seed)
    found = (await stocked.search(Search(limit, query, filter=search_filter))).papers
    admitted = {key: cosine(query, point.profile) for key, point in corpus.items() if search_filter.admits(point.paper)}
    assert len(found) == min(limit, len(admitted))
    order = [(-hit.score, hit.paper.id) for hit in found]
    assert order == sorted(order)
    for hit in found:
        assert hit.paper == corpus[hit.paper.id].paper
        assert hit.score == pytest.approx(admitted.pop(hit.paper.id), abs=1e-5)
    assert all(score <= found[-1].score + 1e-5 for score in admitted.values())


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(search_filter=filters, size=st.integers(1, 50))
async def test_pages_hold_everything_once_in_one_order(stocked: Index, search_filter: SearchFilter, size: int) -> None:
    async def walk() -> list[Paper]:
        papers, token = await stocked.list_papers(size, "", search_filter)
        while token:
            assert len(papers) % size == 0
            more, token = await stocked.list_papers(size, token, search_filter)
            papers += more
        return papers

    papers = await walk()
    expected = [point.paper for point in map(paper, range(120)) if search_filter.admits(point.paper)]
    assert sorted(papers, key=lambda listed: listed.id) == expected
    assert await walk() == papers


async def test_a_page_token_belongs_to_its_question(stocked: Index) -> None:
    _, token = await stocked.list_papers(10, "", SearchFilter(year_from=1990))
    for wrong, asked in ((token, SearchFilter()), ("broken", SearchFilter()), (token[:-6], SearchFilter())):
        with pytest.raises(InvalidField, match="page_token"):
            await stocked.list_papers(10, wrong, asked)


async def test_ties_go_by_id_also_at_the_limit(index: Index) -> None:
    same = vector(1)
    await write(index, *(paper(number, profile=same) for number in reversed(range(100))))
    for limit in (1, 30, 99, 100):
        assert await ids(index, same, limit) == [f"paper-{number:03}" for number in range(limit)]


async def test_content_is_searched_by_cosine_too(index: Index) -> None:
    await write(index, *(paper(number, content=vector(number) * (number + 1)) for number in range(30)))
    query = vector(77)
    expected = sorted(range(30), key=lambda number: -cosine(query, vector(number)))
    assert await ids(index, query, searched=CONTENT) == [f"paper-{number:03}" for number in expected]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    search_filter=filters,
    seed=st.integers(0, 50),
    limit=st.integers(1, 140),
    searched=st.sampled_from([HYBRID, LEXICAL]),
)
async def test_words_and_profile_are_added_over_all_that_the_filter_admits(
    stocked: Index, search_filter: SearchFilter, seed: int, limit: int, searched: str
) -> None:
    query, words = vector(seed), words_query(seed)
    expected = {}
    for point in map(paper, range(120)):
        lexical = lexical_score(words, point.terms, point.length)
        score = cosine(query, point.profile) + 3.0 * lexical if searched == HYBRID else lexical
        if search_filter.admits(point.paper) and (lexical or searched == HYBRID):
            expected[point.paper.id] = score
    search = Search(limit, query, words, 5, searched, search_filter)
    found = (await stocked.search(search)).papers
    assert len(found) == min(limit, len(expected))
    assert [(-hit.score, hit.paper.id) for hit in found] == sorted((-hit.score, hit.paper.id) for hit in found)
    for hit in found:
        point = paper(int(hit.paper.id[-3:]))
        assert hit.score == pytest.approx(expected.pop(hit.paper.id), abs=1e-5)
        assert hit.lexical_score == pytest.approx(lexical_score(words, point.terms, point.length), abs=1e-6)
        assert hit.profile_score == pytest.approx(cosine(query, point.profile) if searched == HYBRID else 0, abs=1e-6)
        heaviest = contributions(words, point.terms, point.length).largest(5)
        assert np.array_equal(hit.matched.ids, heaviest.ids)
        assert np.allclose(hit.matched.values, heaviest.values)
    assert all(score <= found[-1].score + 1e-5 for score in expected.values())


async def test_the_best_by_words_and_profile_are_found_among_thousands(index: Index) -> None:
    """Papers of a subject share a direction and words; candidates are named by each part alone, and both count."""
    draw = np.random.default_rng(3)
    subjects = draw.standard_normal((12, DIMENSION)).astype(np.float32)
    vocabulary = draw.integers(1, 5000, (12, 60))

    def about(number: int) -> PaperPoint:
        subject = number % 12
        common = draw.zipf(1.2, 40) % 4000
        words = np.unique(np.concatenate([draw.choice(vocabulary[subject], 20), common]))
        terms = Terms.of({int(word): float(draw.integers(1, 7)) / 2 for word in words})
        direction = subjects[subject] + 0.7 * draw.standard_normal(DIMENSION).astype(np.float32)
        return paper(number, profile=direction, terms=terms, length=float(terms.values.sum()))

    points = [about(number) for number in range(3000)]
    for start in range(0, len(points), 500):
        await write(index, *points[start : start + 500])
    recalls = []
    for source in points[:8]:
        words = LexicalQuery(Terms(source.terms.ids, np.full(len(source.terms), 0.02, np.float32)), 3.0, 1.2, 0.4, 90.0)
        scores = {
            point.paper.id: cosine(source.profile, point.profile) + 3 * lexical_score(words, point.terms, point.length)
            for point in points
        }
        best = set(sorted(scores, key=lambda key: -scores[key])[:300])
        found = (await index.search(Search(300, source.profile, words, searched=HYBRID))).papers
        recalls.append(len(best & {hit.paper.id for hit in found}) / 300)
    assert np.mean(recalls) >= 0.98


async def test_a_hidden_or_changed_paper_has_other_words(stocked: Index) -> None:
    words = words_query(3)

    async def by_words() -> dict[str, float]:
        found = await stocked.search(Search(200, lexical=words, searched=LEXICAL))
        return {hit.paper.id: hit.score for hit in found.papers}

    before = await by_words()
    assert {"paper-003", "paper-005"} <= before.keys()
    empty = Terms.of({})
    await write(stocked, paper(3, version=2, hidden=True), paper(5, version=2, terms=empty, length=0.0))
    await write(stocked, paper(7, version=2, terms=bag(3), length=3.0))
    after = await by_words()
    assert not {"paper-003", "paper-005"} & after.keys()
    assert after["paper-007"] > before["paper-007"]


async def test_an_older_version_never_replaces_a_newer_one(index: Index) -> None:
    new, old = vector(1), vector(2)
    assert await write(index, paper(0, version=5, profile=new)) == 0
    assert await write(index, paper(0, version=4, profile=old)) == 1
    assert await write(index, paper(0, version=5, profile=old)) == 0
    [[stored], _] = await index.read_points("", ["paper-000"], [])
    assert stored.version == 5
    assert np.array_equal(stored.profile, unit(new))
    assert await write(index, paper(0, version=6, profile=old)) == 0
    [[stored], _] = await index.read_points("", ["paper-000"], [])
    assert np.array_equal(stored.profile, unit(old))
    assert cosine(stored.content, vector(1000)) == pytest.approx(1)


async def test_a_batch_may_name_a_paper_twice_and_the_newest_stays(index: Index) -> None:
    await write(index, paper(0, version=3, profile=vector(3)), paper(0, version=2, profile=vector(2)))
    [[stored], _] = await index.read_points("", ["paper-000"], [])
    assert stored.version == 3


async def test_stale_points_do_not_hold_up_the_rest_of_a_batch(index: Index) -> None:
    await write(index, *(paper(number, version=2) for number in range(0, 100, 2)))
    assert await write(index, *(paper(number) for number in range(100))) == 50
    assert len(await ids(index, vector(0))) == 100


async def test_hidden_papers_and_spans_are_in_no_answer(stocked: Index, adapter: Adapter) -> None:
    await write(stocked, paper(3, version=2, hidden=True), span(20, 5, version=2, hidden=True))
    assert "paper-003" not in await ids(stocked, paper(3).profile)
    assert "paper-003" not in await ids(stocked, paper(3).content, searched=CONTENT)
    shown, missing = await stocked.papers(["paper-005", "paper-003", "unheard of", "paper-001"])
    assert [listed.id for listed in shown] == ["paper-005", "paper-001"]
    assert missing == ["paper-003", "unheard of"]
    listed, _ = await stocked.list_papers(1000, "", SearchFilter())
    assert len(listed) == 119
    for query in (vector(2020), np.empty(0, np.float32)):
        found = await stocked.search_evidence(EvidenceSearch(["paper-005"], 20, query))
        assert len(found["paper-005"]) == 19
    stats = await stocked.stats()
    assert (stats.papers, stats.hidden_papers, stats.spans) == (119, 1, 199)
    assert await adapter.store.points(VIEW, Kind.PAPERS).count() == 120
    [[hidden], [gone]] = await stocked.read_points("", ["paper-003"], ["20>5"])
    assert hidden.hidden
    assert gone.hidden
    await write(stocked, paper(3, version=3))
    assert "paper-003" in await ids(stocked, paper(3).profile)


async def test_evidence_is_the_nearest_words_about_each_paper(stocked: Index) -> None:
    query = vector(9)
    found = await stocked.search_evidence(EvidenceSearch(["paper-007", "paper-001", "nobody's"], 5, query))
    assert list(found) == ["paper-007", "paper-001", "nobody's"]
    nearest = sorted(range(20, 40), key=lambda citing: -cosine(query, vector(2000 + citing)))[:5]
    for cited in ("paper-007", "paper-001"):
        assert [piece.span.citing_id for piece in found[cited]] == [f"paper-{citing:03}" for citing in nearest]
        assert all(piece.span.cited_id == cited for piece in found[cited])
        assert found[cited][0].score == pytest.approx(cosine(query, vector(2000 + nearest[0])), abs=1e-5)
    assert found["nobody's"] == []


async def test_evidence_keeps_what_is_dated_later_and_the_draft_itself_out(stocked: Index) -> None:
    search = EvidenceSearch(["paper-001"], 20, vector(9), PartialDate(2016), ["paper-022"])
    found = await stocked.search_evidence(search)
    assert {piece.span.citing_id for piece in found["paper-001"]} == {
        f"paper-{citing:03}" for citing in (20, 21, 23, 24, 25)
    }


async def test_without_a_query_the_newest_words_come_first(stocked: Index) -> None:
    found = await stocked.search_evidence(EvidenceSearch(["paper-001", "paper-002"], 3))
    for pieces in found.values():
        assert [piece.span.citing_id for piece in pieces] == ["paper-039", "paper-038", "paper-037"]


async def test_what_was_written_is_read_back_whole(index: Index) -> None:
    written = paper(8)
    await write(index, written, span(9, 8))
    [[stored], [said]] = await index.read_points("", ["paper-008", "unheard of"], ["9>8"])
    for name in ("profile", "content"):
        assert np.allclose(getattr(stored, name), unit(getattr(written, name)), atol=1e-6)
    assert stored.paper == written.paper
    assert (stored.terms, stored.length) == (written.terms, written.length)
    assert np.allclose(said.vector, unit(span(9, 8).vector), atol=1e-6)
    expected = span(9, 8)
    assert all(getattr(said, name) == getattr(expected, name) for name in SpanPoint.__slots__ if name != "vector")


@pytest.mark.parametrize(
    ("field", "broken"),
    [
        ("profile", {"profile": np.full(DIMENSION, np.nan, np.float32)}),
        ("profile", {"profile": np.full(DIMENSION, np.inf, np.float32)}),
        ("profile", {"profile": np.ones(DIMENSION + 1, np.float32)}),
        ("profile", {"profile": np.empty(0, np.float32)}),
        ("content", {"content": np.ones(3, np.float32)}),
        (r"terms.ids\[1\]", {"terms": Terms(np.array([1, 1], np.uint32), np.ones(2, np.float32))}),
        ("terms.values", {"terms": Terms(np.array([1], np.uint32), np.empty(0, np.float32))}),
        (r"terms.values\[0\]", {"terms": Terms.of({1: 0.0})}),
        (r"terms.values\[1\]", {"terms": Terms.of({1: 1.0, 2: np.nan})}),
        ("length", {"length": -1.0}),
        ("version", {"version": 0}),
        ("paper.id", {"paper": Paper("")}),
    ],
)
async def test_one_bad_point_among_a_hundred_writes_nothing(
    index: Index, field: str, broken: dict[str, object]
) -> None:
    with pytest.raises(InvalidField, match=rf"papers\[70\].{field}"):
        await write(index, *(paper(number, **(broken if number == 70 else {})) for number in range(100)))
    stats = await index.stats()
    assert (stats.papers, stats.change_number) == (0, 0)


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        ("vector", {"vector": np.empty(0, np.float32)}),
        ("vector", {"vector": np.zeros(DIMENSION, np.float32)}),
        ("vector", {"vector": np.ones(DIMENSION - 1, np.float32)}),
        ("vector", {"vector": np.full(DIMENSION, np.nan, np.float32)}),
        ("limit", {"limit": 0}),
        ("limit", {"limit": 3001}),
        ("lexical", {"searched": LEXICAL}),
        ("lexical", {"searched": HYBRID}),
        ("vector", {"searched": HYBRID, "lexical": words_query(1), "vector": np.empty(0, np.float32)}),
        ("lexical.weight", {"searched": HYBRID, "lexical": words_query(1, weight=np.nan)}),
        ("lexical.b", {"searched": HYBRID, "lexical": replace(words_query(1), b=1.5)}),
        ("lexical.terms.ids[1]", {"searched": LEXICAL, "lexical": replace(words_query(1), terms=DESCENDING)}),
        ("matched_terms", {"searched": HYBRID, "lexical": words_query(1), "matched_terms": 51}),
    ],
)
async def test_a_bad_search_names_its_field(stocked: Index, field: str, asked: dict[str, object]) -> None:
    with pytest.raises(InvalidField) as refused:
        await stocked.search(replace(Search(10, vector(0)), **asked))  # type: ignore[arg-type]
    assert refused.value.field == field


async def test_a_query_of_another_encoder_is_refused(stocked: Index) -> None:
    with pytest.raises(FailedPrecondition, match=r"'encoder-a'.*'encoder-b'"):
        await ids(stocked, vector(0), model_hash="encoder-b")
    assert await ids(stocked, vector(0), model_hash="encoder-a")


async def test_a_write_of_another_life_of_the_ledger_is_refused(index: Index) -> None:
    with pytest.raises(FailedPrecondition, match=r"'first life'.*'second life'"):
        await write(index, paper(0), epoch="second life")
    assert await ids(index, vector(0)) == []


async def test_a_view_is_created_once_and_never_changed(index: Index) -> None:
    assert await index.create_view(VIEW) is False
    for changes in ({"epoch": "second life"}, {"model_hash": "encoder-b"}, {"dimension": 8}, {"settings_hash": "x"}):
        [(name, value)] = changes.items()
        with pytest.raises(FailedPrecondition, match=f"{name} {getattr(VIEW, name)!r}, not {value!r}"):
            await index.create_view(replace(VIEW, **changes))  # type: ignore[arg-type]
    for wrong in ("", "../up", "Main", "a" * 65):
        with pytest.raises(InvalidField, match="index_view"):
            replace(VIEW, name=wrong)


async def test_a_second_view_is_filled_beside_the_served_one_and_then_served(stocked: Index, adapter: Adapter) -> None:
    other = View("rebuilt", EPOCH, "encoder-b", 8)
    assert await stocked.create_view(other) is True
    short = vector(0)[:8]
    await write(stocked, replace(paper(0), profile=short, content=short), view="rebuilt")
    assert len(await ids(stocked, vector(0))) == 120
    assert await ids(stocked, short, index_view="rebuilt") == ["paper-000"]
    assert await stocked.serve_view("rebuilt") == "main"
    assert await ids(stocked, short, model_hash="encoder-b") == ["paper-000"]
    with pytest.raises(FailedPrecondition, match="'rebuilt' is served"):
        await stocked.drop_view("rebuilt")
    await stocked.drop_view("main")
    await stocked.drop_view("main")
    with pytest.raises(NotFound, match="'main'"):
        await ids(stocked, vector(0), index_view="main")
    reopened = await adapter.restart()
    registry = await reopened.registry()
    assert (list(registry.views.values()), registry.serving) == ([other], "rebuilt")
    assert await ids(reopened, short) == ["paper-000"]


async def test_nothing_is_served_before_a_view_is(adapter: Adapter) -> None:
    index = await adapter.open()
    with pytest.raises(FailedPrecondition, match="no view is served"):
        await ids(index, vector(0))
    await index.check()


async def test_a_restart_keeps_everything(stocked: Index, adapter: Adapter) -> None:
    query, search = vector(5), EvidenceSearch(["paper-004"], 10, vector(6))
    before = (await ids(stocked, query), await stocked.search_evidence(search))
    stats = await stocked.stats()
    again = await adapter.restart()
    after = (await ids(again, query), await again.search_evidence(search))
    assert after[0] == before[0]
    [was, now] = (said["paper-004"] for said in (before[1], after[1]))
    assert [piece.span.key for piece in now] == [piece.span.key for piece in was]
    assert [piece.score for piece in now] == pytest.approx([piece.score for piece in was], abs=1e-6)
    assert replace(await again.stats(), disk_bytes=0) == replace(stats, disk_bytes=0)


async def test_the_change_number_grows_with_every_write_that_changed_something(
    stocked: Index, adapter: Adapter
) -> None:
    async def number() -> int:
        return (await stocked.stats()).change_number

    before = await number()
    await write(stocked, paper(0, version=2))
    between = await number()
    await write(stocked, span(20, 0, version=2))
    assert before < between < await number()


async def test_the_feed_names_what_was_written_since(stocked: Index, adapter: Adapter) -> None:
    papers = adapter.store.points(VIEW, Kind.PAPERS)
    seen = await papers.changes(0)
    assert seen.ids == {point_id(f"paper-{number:03}") for number in range(120)}
    assert await papers.changes(seen.number) == Changes(seen.number, frozenset())
    await write(stocked, paper(1, version=2), paper(2), paper(3, version=2, hidden=True))
    news = await papers.changes(seen.number)
    assert news.ids >= {point_id("paper-001"), point_id("paper-003")}
    assert news.ids <= {point_id(f"paper-00{number}") for number in (1, 2, 3)}
    assert news.number > seen.number


async def test_a_server_that_is_gone_is_a_clear_error() -> None:
    store = QdrantStore(
        lambda: AsyncQdrantClient(url="http://127.0.0.1:1", grpc_port=1, prefer_grpc=True, check_compatibility=False)
    )
    with deadlines.within(5), pytest.raises(Unavailable, match="the store does not answer"):
        await store.open()
    await store.close()


async def test_a_prefix_does_not_see_the_views_of_a_longer_one() -> None:
    client = Lasting(":memory:")
    short, long = (QdrantStore(lambda: client, prefix=prefix) for prefix in ("x", "x-staging"))
    for store in (short, long):
        await store.open()
    await long.create(VIEW)
    await short.open()
    assert not (await short.registry()).views
    assert list((await long.registry()).views) == [VIEW.name]


class Refusal(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "Wrong input: limit is 9000"


async def test_a_refusal_of_the_server_is_no_outage() -> None:
    async def refused(error: Exception) -> None:
        raise error

    for code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAUTHENTICATED):
        with pytest.raises(FailedPrecondition, match=rf"refuses.*{code.name}.*limit is 9000"):
            await ask(refused(Refusal(code)))
    with pytest.raises(FailedPrecondition, match=r"refuses.*bad key"):
        await ask(refused(UnexpectedResponse(401, "Unauthorized", b"bad key", httpx.Headers())))
    with pytest.raises(Unavailable):
        await ask(refused(Refusal(grpc.StatusCode.UNAVAILABLE)))
    with pytest.raises(Unavailable):
        await ask(refused(UnexpectedResponse(503, "Service Unavailable", b"", httpx.Headers())))


async def test_a_change_number_goes_to_one_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    with memory_folder() as folder:
        store = qdrant_local(folder)
        await store.open()
        await store.create(VIEW)
        client = Lasting.opened[folder]
        slow, fast = (ChangeLog(client, "citewell-main-changes") for _ in range(2))
        for number in range(3):
            await fast.append(Kind.PAPERS, [point_id(f"fast {number}")])

        async def outdated() -> int:
            return 0  # as read before the other's three entries

        with monkeypatch.context() as patch:
            patch.setattr(slow, "number", outdated)
            await slow.append(Kind.PAPERS, [point_id("slow")])
        assert await slow.number() == await fast.number() == 4
        assert (await fast.since(3, Kind.PAPERS)).ids == {point_id("slow")}
        assert len((await slow.since(0, Kind.PAPERS)).ids) == 4
        assert await slow.since(0, Kind.SPANS) == Changes(4, frozenset())


async def test_a_write_that_two_readers_of_the_change_log_see_at_once_is_no_restore() -> None:
    with memory_folder() as folder:
        store = qdrant_local(folder)
        await store.open()
        await store.create(VIEW)
        client = Lasting.opened[folder]
        reader, writer = (ChangeLog(client, "citewell-main-changes") for _ in range(2))
        await writer.append(Kind.PAPERS, [point_id("a")])
        assert await reader.number() == 1
        await writer.append(Kind.PAPERS, [point_id("b")])
        entries = reader._entries

        async def over_a_network(*args: object) -> list[dict[str, object]]:
            found = await entries(*args)  # type: ignore[arg-type]
            await asyncio.sleep(0)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reader, "_entries", over_a_network)
            assert await asyncio.gather(reader.number(), reader.number()) == [2, 2]
            assert reader.lives == 0
            await client.delete("citewell-main-changes", [2])  # as a restore does
            assert await asyncio.gather(reader.number(), reader.number()) == [1, 1]
        assert reader.lives == 1
        await store.close()


async def test_the_change_log_stays_small_and_copies_that_are_behind_load_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(qdrant_points, "KEPT_ENTRIES", 20)
    monkeypatch.setattr(qdrant_points, "DELETE_EVERY", 5)
    with memory_folder() as folder:
        plain, copied = qdrant_local(folder), qdrant_local_flat(folder)
        await plain.open()
        index, behind = Index(plain), Index(copied)
        await index.create_view(VIEW)
        await index.serve_view(VIEW.name)
        await copied.open()
        await loaded(copied, VIEW)
        for number in range(60):
            await write(index, paper(number))
        client = Lasting.opened[folder]
        assert (await client.count("citewell-main-changes")).count <= 25
        with pytest.raises(ChangesForgottenError):
            await plain.points(VIEW, Kind.PAPERS).changes(3)
        assert len(await ids(behind, vector(0))) == 60  # answered by the store while the copy is loaded again
        await loaded(copied, VIEW)
        found = await behind.search(Search(100, vector(0)))
        assert (found.engine, len(found.papers)) == ("faiss-flat", 60)
        await copied.close()


@pytest.mark.parametrize("told_first", [False, True])
async def test_a_copy_notices_that_the_store_was_restored(told_first: bool) -> None:
    with memory_folder() as folder:
        plain, copied = qdrant_local(folder), qdrant_local_flat(folder)
        await plain.open()
        index, survivor = Index(plain), Index(copied)
        await index.create_view(VIEW)
        await index.serve_view(VIEW.name)
        await copied.open()
        await loaded(copied, VIEW)
        for number in range(5):
            await write(survivor, paper(number))
        # The state after a restore: an earlier log, and another write with a number that the copy has already seen.
        client = Lasting.opened[folder]
        await client.delete("citewell-main-changes", [3, 4, 5])
        restored = qdrant_local(folder)
        await restored.open()
        for number in range(5, 8):
            await write(Index(restored), paper(number))
        if told_first:  # whoever asks first, the copy hears of it
            assert (await survivor.stats()).papers == 8
        assert len(await ids(survivor, vector(0))) == 8
        await loaded(copied, VIEW)
        found = await survivor.search(Search(100, vector(0)))
        assert (found.engine, len(found.papers)) == ("faiss-flat", 8)
        await copied.close()


async def test_papers_that_a_restore_took_away_take_no_places_in_answers() -> None:
    with memory_folder() as folder:
        plain, copied = qdrant_local(folder), qdrant_local_flat(folder)
        await plain.open()
        index, survivor = Index(plain), Index(copied)
        await index.create_view(VIEW)
        await index.serve_view(VIEW.name)
        await copied.open()
        await loaded(copied, VIEW)
        for number in range(6):
            await write(survivor, paper(number))
        client = Lasting.opened[folder]
        await client.delete("citewell-main-changes", [1, 2, 3, 4, 5, 6])
        await client.delete("citewell-main-papers", [str(point_id(f"paper-{number:03}")) for number in range(5)])
        await copied.check()
        await loaded(copied, VIEW)
        found = await survivor.search(Search(1, vector(0)))  # the nearest to which were the five
        assert (found.engine, [each.paper.id for each in found.papers]) == ("faiss-flat", ["paper-005"])
        await copied.close()


def test_the_largest_search_by_words_stays_within_what_the_server_is_told_to_allow() -> None:
    for limit in (MAX_LIMIT, MAX_LIMIT + 4, 2 * MAX_LIMIT):
        assert named(Nearest(HYBRID, None, limit)) <= (qdrant_server_module._STRICT.max_query_limit or 0)
