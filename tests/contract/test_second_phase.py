"""The second phase of a HYBRID search: every store ranks the best candidates again, and ranks them alike."""

from dataclasses import replace

import numpy as np
import pytest

from citewell.index.accelerator import AcceleratedStore
from citewell.index.index import Index
from citewell.index.points import HYBRID, PaperPoint, unit
from citewell.index.qdrant_edge import EdgeStore
from citewell.index.queries import EVERYTHING, Found, Search
from citewell.index.second_phase import FEATURES, Candidates, Matches
from citewell.index.second_phase_model import SecondPhaseModel, model_text, read_model
from citewell.runtime.errors import InvalidField
from citewell.scholarly.lexical import LexicalQuery, Terms, lexical_score
from citewell.scholarly.papers import SearchFilter
from citewell.scholarly.second_phase import PARTS, SecondPhaseQuery
from citewell.scholarly.words import count_terms
from tests.memory_folder import memory_folder
from tests.store_world import (
    DIMENSION,
    LOCAL_MODE,
    VIEW,
    Adapter,
    cosine,
    loaded,
    paper,
    vector,
    words_query,
    write,
)

pytestmark = LOCAL_MODE

TITLES = ("On the tides of lantern", "Ropes and keels", "", "Lantern keels: a survey of lantern tides")


def a_model(names: tuple[str, ...] = tuple(FEATURES), seed: int = 1) -> SecondPhaseModel:
    draw = np.random.default_rng(seed)
    shapes = {"direct": (len(names),), "hidden": (5, len(names)), "bias": (5,), "out": (5,)}
    return read_model(model_text(names, {name: draw.normal(size=shape) for name, shape in shapes.items()}, {}))


def titled(number: int, **changes: object) -> PaperPoint:
    """A paper whose title shares words with the queries and with its own bag."""
    point = paper(number, **changes)
    title = f"{TITLES[number % 4]} {number}"
    counts = Terms.of(
        {int(term): 2.0 for term in count_terms(title)}
        | dict(zip(point.terms.ids.tolist(), point.terms.values.tolist(), strict=True))
    )
    return replace(point, paper=replace(point.paper, title=title), terms=counts, length=float(counts.values.sum()))


def a_query(seed: int) -> tuple[LexicalQuery, SecondPhaseQuery]:
    words = words_query(seed)
    ids = np.array(sorted({*words.terms.ids.tolist(), *count_terms(" ".join(TITLES))}), np.uint32)
    draw = np.random.default_rng(seed)
    weights = draw.random((len(PARTS), len(ids))).astype(np.float32)
    weights /= weights.sum(axis=1, keepdims=True)
    terms = Terms(ids, weights.mean(axis=0))
    vectors = [unit(vector(seed + at)) for at in (1, 2, 3)]
    return replace(words, terms=terms), SecondPhaseQuery(*vectors[:2], weights, vectors[2])


def expected(model: SecondPhaseModel, points: list[PaperPoint], seed: int) -> list[tuple[str, float]]:
    """The ranking by a naive reading of the points, all of which are candidates."""
    words, second = a_query(seed)
    lexical = {point.paper.id: lexical_score(words, point.terms, point.length) for point in points}
    score = {point.paper.id: cosine(vector(seed), point.profile) + 3.0 * lexical[point.paper.id] for point in points}
    points = sorted(points, key=lambda point: (-score[point.paper.id], point.paper.id))
    bags = [dict(zip(point.terms.ids.tolist(), point.terms.values.tolist(), strict=True)) for point in points]
    titles = [dict.fromkeys(count_terms(point.paper.title), 1.0) for point in points]

    def matches(of: list[dict[int, float]]) -> Matches:
        entries = [
            (at, number, one[term])
            for at, one in enumerate(of)
            for number, term in enumerate(words.terms.ids.tolist())
            if term in one
        ]
        owner, term, count = zip(*entries, strict=True)
        return Matches(np.array(owner), np.array(term), np.array(count, np.float64))

    candidates = Candidates(
        np.array([score[point.paper.id] for point in points]),
        np.array([cosine(vector(seed), point.profile) for point in points]),
        np.array([lexical[point.paper.id] for point in points]),
        np.stack([unit(point.profile) for point in points]),
        matches(bags),
        np.array([point.length for point in points], np.float64),
        matches(titles),
        np.array([len(title) for title in titles], np.float64),
        np.array([point.paper.in_degree for point in points], np.float64),
    )
    scores = model.shares(second, words.mean_length, candidates).sum(axis=1)
    return sorted(
        ((point.paper.id, float(one)) for point, one in zip(points, scores, strict=True)),
        key=lambda one: (-one[1], one[0]),
    )


async def ask(searched: Index, seed: int, limit: int, admitted: SearchFilter = EVERYTHING) -> Found:
    words, second = a_query(seed)
    return await searched.search(Search(limit, vector(seed), words, 3, HYBRID, admitted, second=second))


async def test_candidates_are_ranked_again_by_the_model(adapter: Adapter, index: Index) -> None:
    points = [titled(number) for number in range(60)]
    await write(index, *points)
    model = a_model()
    again = Index(adapter.store, second_phase=model)
    for seed in range(3):
        found = await ask(again, seed, 60)
        wanted = expected(model, points, seed)
        assert [(hit.paper.id) for hit in found.papers] == [key for key, _ in wanted]
        assert found.second is model
        first = (await ask(index, seed, 60)).papers
        for hit, (_, score) in zip(found.papers, wanted, strict=True):
            assert hit.second is not None
            assert hit.second.score == pytest.approx(score, abs=1e-3)
            assert hit.second.shares.sum() == pytest.approx(hit.second.score)
            earlier = first[hit.second.first_rank - 1]
            assert (earlier.paper.id, earlier.score, earlier.second) == (hit.paper.id, hit.score, None)
        few = await ask(again, seed, 7)
        assert [hit.paper.id for hit in few.papers] == [key for key, _ in wanted[:7]]
        assert all(len(hit.matched) for hit in few.papers if hit.lexical_score)


async def test_rewritten_and_hidden_papers_are_ranked_as_they_are_now(adapter: Adapter, index: Index) -> None:
    await write(index, *(titled(number) for number in range(40)))
    await write(index, *(titled(number, version=2, hidden=True) for number in range(0, 40, 4)))
    changed = [
        replace(titled(number + 100, version=2), paper=replace(titled(number + 100).paper, id=f"paper-{number:03}"))
        for number in range(1, 40, 4)
    ]
    await write(index, *changed)
    points = [*changed, *(titled(number) for number in range(40) if number % 4 > 1)]
    model = a_model(seed=4)
    found = await ask(Index(adapter.store, second_phase=model), 5, 40)
    assert [hit.paper.id for hit in found.papers] == [key for key, _ in expected(model, points, 5)]


async def test_a_filter_leaves_candidates_out_before_they_are_ranked(adapter: Adapter, index: Index) -> None:
    points = [titled(number) for number in range(50)]
    await write(index, *points)
    model, admitted = a_model(), SearchFilter(excluded_ids=frozenset(f"paper-{number:03}" for number in range(20)))
    found = await ask(Index(adapter.store, second_phase=model), 2, 50, admitted)
    assert [hit.paper.id for hit in found.papers] == [key for key, _ in expected(model, points[20:], 2)]


async def test_without_a_model_or_a_context_the_first_phase_ranks(adapter: Adapter, index: Index) -> None:
    await write(index, *(titled(number) for number in range(20)))
    words, second = a_query(1)
    plain = [hit.paper.id for hit in (await index.search(Search(20, vector(1), words, searched=HYBRID))).papers]
    again = Index(adapter.store, second_phase=a_model())
    no_context = replace(second, context=np.empty(0, np.float32))
    for asked, with_second in ((index, second), (again, None), (again, no_context)):
        found = await asked.search(Search(20, vector(1), words, searched=HYBRID, second=with_second))
        assert [hit.paper.id for hit in found.papers] == plain
        assert found.second is None


@pytest.mark.parametrize("name", ["context", "paper", "window"])
async def test_a_vector_of_another_length_is_refused_and_one_not_of_unit_length_ranks_alike(
    adapter: Adapter, index: Index, name: str
) -> None:
    await write(index, *(titled(number) for number in range(20)))
    words, second = a_query(1)
    again = Index(adapter.store, second_phase=a_model())
    long = replace(second, **{name: np.ones(DIMENSION + 1, np.float32)})
    with pytest.raises(InvalidField, match=rf"second_phase\.{name}_vector"):
        await again.search(Search(20, vector(1), words, searched=HYBRID, second=long))
    tripled = replace(second, **{name: 3 * getattr(second, name)})
    one, other = [
        (await again.search(Search(20, vector(1), words, searched=HYBRID, second=each))).papers
        for each in (second, tripled)
    ]
    assert [hit.paper.id for hit in one] == [hit.paper.id for hit in other]
    scores = [[hit.second.score for hit in found if hit.second] for found in (one, other)]
    assert len(scores[0]) == 20
    assert np.allclose(*scores, atol=1e-4)


async def test_behind_the_best_thousand_the_first_phase_ranks() -> None:
    """And a copy in memory ranks like the store behind it, to the last bit."""
    with memory_folder() as folder:
        store = AcceleratedStore(EdgeStore(folder), "flat")
        await store.open()
        plain, again = Index(store), Index(store, second_phase=a_model())
        await plain.create_view(VIEW)
        await plain.serve_view(VIEW.name)
        await loaded(store, VIEW)
        await write(plain, *(titled(number, profile=vector(number)) for number in range(1100)))
        first = [hit.paper.id for hit in (await ask(plain, 3, 1100)).papers]
        found = (await ask(again, 3, 1100)).papers
        assert {hit.paper.id for hit in found[:1000]} == set(first[:1000])
        assert [hit.paper.id for hit in found[:1000]] != first[:1000]
        assert [hit.paper.id for hit in found[1000:]] == first[1000:]
        assert all(hit.second is None for hit in found[1000:])
        behind = (await ask(Index(store._store, second_phase=a_model()), 3, 1100)).papers
        assert [(hit.paper.id, hit.second and hit.second.score) for hit in behind[:300]] == [
            (hit.paper.id, hit.second and hit.second.score) for hit in found[:300]
        ]
        await store.close()
