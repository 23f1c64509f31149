"""The copy in memory gives the same answers as its store, after any history and in every process that follows it."""

import asyncio
import contextlib
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from citewell.index import faiss_index, hybrid, postings, span_search
from citewell.index.accelerator import AcceleratedPoints, AcceleratedStore
from citewell.index.dense import Dense
from citewell.index.filters import paper_conditions
from citewell.index.following import Follower
from citewell.index.hybrid import word_parts
from citewell.index.index import Index
from citewell.index.paper_copy import PaperCopy
from citewell.index.points import (
    HYBRID,
    LEXICAL,
    PROFILE,
    PaperPoint,
    Point,
    SpanPoint,
    Vector,
    newest,
    paper_to_point,
    point_id,
    unit,
)
from citewell.index.postings import merge
from citewell.index.qdrant_edge import EdgeStore
from citewell.index.queries import EvidenceSearch, Search
from citewell.index.ranking import ranked
from citewell.index.store import Answers, Changes, ChangesForgottenError, Kind, Nearest, Page, Points
from citewell.index.threads import CopyThreads
from citewell.index.views import View
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.lexical import LexicalQuery, Terms
from citewell.scholarly.papers import Paper, SearchFilter
from tests.memory_folder import memory_folder

DIMENSION = 8
VIEW = View("main", "e1", "m1", DIMENSION)
VENUES = ("", "Tides", "Lanterns")


def vector(seed: int) -> Vector:
    return unit(np.random.default_rng(seed).standard_normal(DIMENSION).astype(np.float32))


def bag(seed: int) -> Terms:
    """A bag from a small vocabulary, so that bags share words; every 4th bag is empty."""
    draw = np.random.default_rng(seed)
    words = draw.integers(1, 12, 5 if seed % 4 else 0)
    return Terms.of({int(word): float(draw.integers(1, 9)) / 2 for word in words})


def words_query(seed: int) -> LexicalQuery:
    ids = np.unique(np.random.default_rng(100 + seed).integers(1, 14, 4)).tolist()
    return LexicalQuery(Terms.of(dict.fromkeys(ids, 1 / 4)), 3.0, 1.2, 0.4, 10.0)


numbers = st.integers(0, 30)
papers = st.builds(
    lambda number, seed, version, year, venue, hidden: PaperPoint(
        Paper(f"p{number:02}", venue=venue, published=PartialDate(year)),
        version,
        vector(seed),
        terms=bag(seed * version),
        length=float(seed),
        hidden=hidden,
    ),
    numbers,
    st.integers(0, 9),  # few different vectors, hence many ties
    st.integers(1, 6),
    st.sampled_from([0, 2000, 2001, 2002]),
    st.sampled_from(VENUES),
    st.booleans(),
)
filters = st.builds(
    SearchFilter,
    published_before=st.sampled_from([PartialDate(), PartialDate(2001), PartialDate(2002, 6)]),
    year_from=st.sampled_from([0, 2001]),
    year_to=st.sampled_from([0, 2001]),
    venues=st.frozensets(st.sampled_from(VENUES), max_size=2),
    excluded_ids=st.frozensets(numbers.map(lambda number: f"p{number:02}"), max_size=5),
)


def same_ranking(one: Answers, other: Answers) -> None:
    """The same papers in the same order; two engines may differ in a score's last digits."""
    assert [hit.point.key for hit in one.hits[0]] == [hit.point.key for hit in other.hits[0]]
    assert [hit.score for hit in one.hits[0]] == pytest.approx([hit.score for hit in other.hits[0]], abs=1e-6)


class TwoProcesses(RuleBasedStateMachine):
    """Two index processes over one store, each with its copy, and a third that writes without one."""

    @initialize()
    def start(self) -> None:
        self.loop = asyncio.Runner()
        self.cleanup = contextlib.ExitStack()
        self.folder = self.cleanup.enter_context(memory_folder())
        self.run(self.open(create=True))

    def run(self, work: Any) -> Any:
        return self.loop.run(work)

    async def open(self, *, create: bool = False) -> None:
        self.store = EdgeStore(self.folder)
        await self.store.open()
        if create:
            await self.store.create(VIEW)
        self.writers: list[Points] = [self.store.points(VIEW, Kind.PAPERS)]
        for _ in range(2):
            await self.start_process()

    async def start_process(self) -> None:
        copy = AcceleratedPoints(self.store.points(VIEW, Kind.PAPERS), DIMENSION, "flat", threads=2, feed_seconds=0)
        self.writers.append(copy)

    async def close(self) -> None:
        for process in (1, 2):
            await self.copy(process).close()
        await self.store.close()

    @rule(process=st.integers(0, 2), batch=st.lists(papers, min_size=1, max_size=40))
    def write(self, process: int, batch: list[PaperPoint]) -> None:
        self.run(self.writers[process].upsert(newest(map(paper_to_point, batch))))

    @rule()
    def restart_everything(self) -> None:
        async def restart() -> None:
            await self.close()
            await self.open()

        self.run(restart())

    @rule(process=st.integers(1, 2))
    def restart_one(self, process: int) -> None:
        async def restart() -> None:
            await self.copy(process).close()
            del self.writers[process]
            await self.start_process()

        self.run(restart())

    @rule(process=st.integers(1, 2))
    def wait_until_loaded(self, process: int) -> None:
        self.run(asyncio.wait_for(self.copy(process).loaded.wait(), 20))

    @rule(seed=st.integers(0, 12), limit=st.integers(1, 40), search_filter=filters)
    def search(self, seed: int, limit: int, search_filter: SearchFilter) -> None:
        conditions = paper_conditions(search_filter)
        self.compare(Nearest(PROFILE, vector(seed), limit, conditions))
        for field in (HYBRID, LEXICAL):
            query = Nearest(field, vector(seed), limit, conditions, lexical=words_query(seed), matched_terms=3)
            self.compare(query)

    @invariant()
    def all_answer_alike(self) -> None:
        if hasattr(self, "store"):
            self.compare(Nearest(PROFILE, vector(0), 40))

    def compare(self, query: Nearest) -> None:
        async def ask(points: Points) -> Answers:
            return await ranked(points, [query])

        expected = self.run(ask(self.writers[0]))
        for process in (1, 2):
            was_loaded = self.copy(process).loaded.is_set()
            answers = self.run(ask(self.copy(process)))
            assert answers.engine == "faiss-flat" or not was_loaded
            same_ranking(answers, expected)
            if query.lexical:  # equal to the last bit: copy and store use the same operations
                assert [hit.score for hit in answers.hits[0]] == [hit.score for hit in expected.hits[0]]
                assert [hit.matched for hit in answers.hits[0]] == [hit.matched for hit in expected.hits[0]]

    def copy(self, process: int) -> AcceleratedPoints:
        copy = self.writers[process]
        assert isinstance(copy, AcceleratedPoints)
        return copy

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.run(self.close())
            self.loop.close()
            self.cleanup.close()


TwoProcesses.TestCase.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
test_copies_answer_as_their_store_after_any_history = TwoProcesses.TestCase


def point(number: int, seed: int, hidden: bool = False) -> Point:
    return paper_to_point(
        PaperPoint(Paper(f"p{number:05}"), 1, vector(seed), terms=bag(seed), length=9.0, hidden=hidden)
    )


def shown(index: PaperCopy, query: Vector, limit: int) -> list[Any]:
    asked = Nearest(PROFILE, query, limit)
    with ThreadPoolExecutor(1) as helper:
        return [(found.id, found.score) for found in index.search(asked, helper)][:limit]


@pytest.mark.parametrize("form", ["flat", "sq8"])
def test_rows_of_old_versions_are_given_back(form: Any) -> None:
    index = PaperCopy(DIMENSION, form)
    for generation in range(40):
        index.put([point(number, number + generation) for number in range(200)])
        index.postings.tidy()
    assert len(index.rows) == 200
    assert index.postings.entries < 200 * 5 * 3
    [(found, _)] = shown(index, vector(39 + 17), 1)
    assert found == point(17, 0).id
    index.put([point(number, number, hidden=True) for number in range(199)])
    assert [id_ for id_, _ in shown(index, vector(0), 50)] == [point(199, 0).id]
    assert index.rows.papers == 1
    index.put([point(500, 500)])
    assert len(index.rows) == 200  # a free row is used again


async def test_searches_are_answered_while_words_of_titles_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow_merge(segments: Any) -> Any:
        begun.set()
        assert go_on.wait(30)
        return merge(segments)

    monkeypatch.setattr(postings, "merge", slow_merge)
    with memory_folder() as folder:
        store = AcceleratedStore(EdgeStore(folder), "flat")
        await store.open()
        await store.create(VIEW)
        copied: Any = store.points(VIEW, Kind.PAPERS)
        await asyncio.wait_for(copied.loaded.wait(), 30)

        async def write() -> None:
            for number in range(postings.FAN):  # bags have no words, so only those of titles are merged
                paper = Paper(f"p{number}", title="lanterns at sea")
                await copied.upsert([paper_to_point(PaperPoint(paper, 1, vector(number)))])

        writing = asyncio.create_task(write())
        try:
            assert await asyncio.to_thread(begun.wait, 30)
            found = await asyncio.wait_for(copied.nearest([Nearest(PROFILE, vector(0), 2)]), 10)
            assert found.hits[0][0].point.key == "p0"
        finally:
            go_on.set()
            await writing
            await store.close()


def test_a_gpu_index_tells_what_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    # A flat index in place of a GPU index, which accepts no selector and limits the number of results.
    monkeypatch.setattr(faiss_index, "_new_index", faiss.IndexFlatIP)
    monkeypatch.setattr(faiss_index, "_GPU_MOST", 50)
    wide, exact = PaperCopy(DIMENSION, "gpu"), PaperCopy(DIMENSION, "flat")
    for index in (wide, exact):
        index.put([point(number, number) for number in range(200)])
        index.put([point(number, number + 500) for number in range(100)])
    excluded = paper_conditions(SearchFilter(excluded_ids=frozenset(f"p{number:05}" for number in range(0, 200, 2))))
    with ThreadPoolExecutor(1) as helper:
        for seed in range(20):
            query = Nearest(PROFILE, vector(seed), 5, excluded)
            expected = exact.search(query, helper)
            assert [id_ for id_, _ in wide.nearest(query, 5) or []] == [found.id for found in expected]
    assert wide.nearest(Nearest(PROFILE, vector(0), 51), 51) is None
    assert wide.nearest(Nearest(PROFILE, vector(0), 40, excluded), 40) is None


def test_growing_copies_no_vectors() -> None:
    """Peak memory while 40,000 vectors arrive, against what they take: a doubling array would need three times that."""
    dimension, count = 64, 40_000
    held = Dense(dimension)
    batch = np.ones((500, dimension), np.float32)
    tracemalloc.start()
    for start in range(0, count, 500):
        held.put(np.arange(start, start + 500), batch)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.3 * count * dimension * 4


async def test_a_search_given_up_still_keeps_writers_out() -> None:
    threads = CopyThreads(2)
    started, release = threading.Event(), threading.Event()
    events: list[str] = []

    def search() -> None:
        started.set()
        release.wait(10)
        events.append("search ended")

    searching = asyncio.create_task(threads.run(search))
    await asyncio.to_thread(started.wait, 10)
    searching.cancel()
    writing = asyncio.create_task(threads.run_alone(events.append, "written"))
    for _ in range(10):  # enough time for the writer to start, if it could
        await asyncio.sleep(0)
    release.set()
    await asyncio.wait_for(writing, 10)
    with pytest.raises(asyncio.CancelledError):
        await searching
    assert events == ["search ended", "written"]
    threads.shutdown()


def test_candidates_by_words_are_the_best_whatever_their_rows() -> None:
    copy = PaperCopy(DIMENSION, "sq8")
    towards = np.eye(DIMENSION, dtype=np.float32)
    # More papers than are named, all alike; the last one is far from the vector and best by words.
    stored = [
        PaperPoint(Paper(f"p{number:05}"), 1, towards[0], terms=Terms.of({7: 1.0}), length=1) for number in range(600)
    ]
    stored.append(PaperPoint(Paper("best"), 1, -towards[0], terms=Terms.of({7: 50.0}), length=1))
    copy.put([paper_to_point(each) for each in stored])
    words = LexicalQuery(Terms.of({7: 1.0}), 100.0, 1.2, 0.4, 1.0)
    with ThreadPoolExecutor(1) as helper:
        assert copy.search(Nearest(HYBRID, towards[0], 5, lexical=words), helper)[0].id == point_id("best")


class Feed:
    """Points of a store whose change log is replaced while a copy follows it."""

    def __init__(self) -> None:
        self.number, self.replaced = 0, False

    async def change_number(self) -> int:
        if self.replaced:
            self.replaced = False
            raise ChangesForgottenError
        return self.number

    async def changes(self, after: int) -> Changes:
        return Changes(self.number, frozenset({point_id("a")} if after < self.number else ()))

    async def read(self, ids: Any, vectors: Any = ()) -> list[Point]:
        return [paper_to_point(PaperPoint(Paper("a"), self.number, vector(1)))]

    async def page(self, start: Any, limit: int, conditions: Any = (), vectors: Any = ()) -> Page:
        return Page(await self.read([]), None)


async def test_a_copy_that_is_loaded_again_while_it_takes_in_news_gets_one_batch_at_a_time() -> None:
    feed, threads = Feed(), CopyThreads(2)
    waits, goes_on = asyncio.Event(), asyncio.Event()
    goes_on.set()
    inside = most = fresh = 0

    def begin() -> None:
        nonlocal fresh
        fresh += 1

    async def put(points: Any) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        waits.set()
        await goes_on.wait()
        await threads.run_alone(int)
        inside -= 1

    async def tidy() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await threads.run_alone(int)
        inside -= 1

    follower = Follower("papers", feed, (), begin, put, tidy, 0.0)  # type: ignore[arg-type]
    await asyncio.wait_for(follower.loaded.wait(), 10)
    feed.number = 1
    waits.clear(), goes_on.clear()
    following = asyncio.create_task(follower.follow())
    await asyncio.wait_for(waits.wait(), 10)
    feed.replaced = True
    await follower.follow_if_due()
    assert not follower.loaded.is_set()
    for _ in range(10):  # time enough for the load to hand over its first page, if it could
        await asyncio.sleep(0)
    goes_on.set()
    await asyncio.wait_for(following, 10)
    await asyncio.wait_for(follower.loaded.wait(), 10)
    assert (most, fresh) == (1, 2)
    await follower.close()
    threads.shutdown()


async def test_views_may_be_dropped_while_the_copies_of_dropped_ones_end() -> None:
    with memory_folder() as folder:
        inner = EdgeStore(folder)
        store = AcceleratedStore(inner, "flat")
        await store.open()
        for name in ("a", "b", "c"):
            view = View(name, "e1", "m1", DIMENSION)
            await store.create(view)
            store.points(view, Kind.PAPERS)
        for name in ("a", "b"):
            await inner.drop(name)  # as another process would
        await asyncio.gather(store.check(), store.drop("c"), store.check())
        await store.close()


async def test_a_view_may_be_created_while_the_copies_are_brought_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    with memory_folder() as folder:
        store = AcceleratedStore(EdgeStore(folder), "flat")
        await store.open()
        await store.create(VIEW)
        store.points(VIEW, Kind.PAPERS)
        other = View("other", "e1", "m1", DIMENSION)

        async def meanwhile(self: AcceleratedPoints) -> None:
            if other.name not in (await store.registry()).views:
                await store.create(other)
                store.points(other, Kind.PAPERS)

        monkeypatch.setattr(AcceleratedPoints, "follow", meanwhile)
        await store.check()
        assert set((await store.registry()).views) == {"main", "other"}
        await store.close()


async def test_bags_of_words_are_scored_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def told(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return word_parts(*args)

    monkeypatch.setattr(hybrid, "word_parts", told)
    monkeypatch.setattr(span_search, "word_parts", told)
    with memory_folder() as folder:
        store = EdgeStore(folder)
        await store.open()
        await store.create(VIEW)
        await store.serve(VIEW.name)
        index, terms = Index(store), Terms.of({3: 1.0})
        said = SpanPoint("s", "b", "a", "a tide", 1, vector(1), terms=terms)
        await index.upsert(VIEW.name, VIEW.epoch, [PaperPoint(Paper("a"), 1, vector(1), terms=terms, length=1)], [said])
        words = LexicalQuery(terms, 1.0, 1.2, 0.4, 1.0)
        assert (await index.search(Search(1, vector(1), words, searched=HYBRID))).papers
        assert (await index.search_evidence(EvidenceSearch(["a"], 1, vector(1), lexical=words)))["a"]
        await store.close()
    assert len(threads) == 2
    assert threading.current_thread() not in threads
