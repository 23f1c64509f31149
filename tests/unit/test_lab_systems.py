"""Systems score by their equations, and leaving out a paper's citations equals never having known them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import bm25s
import numpy as np
import pytest

from citewell.index.second_phase_model import packaged_model
from citewell.lab.dataset import Dataset, read_dataset
from citewell.lab.experiment import Experiment
from citewell.lab.knowledge import citations, profile_table
from citewell.lab.lexical import LexicalProfile, Lexicon, PlainBm25
from citewell.lab.protocol import Mode, make_task, training_task
from citewell.lab.retrieval import DEPTH, IdOrder, search
from citewell.lab.systems import Fusion, Popularity, Profiler, SeveralVectors, System
from citewell.lab.systems_by_name import SYSTEMS
from citewell.lab.vectors import TextVectors
from citewell.profiler.lexical import Bm25, FieldWeights, TermWeights
from citewell.profiler.profiles import ProfileWeights, QueryWeights
from citewell.scholarly.words import term_id, words
from tests.lab_sets import invented, vectors_of, write_lines


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return read_dataset(write_lines(tmp_path_factory.mktemp("set"), *invented()))


@pytest.fixture(scope="module")
def vectors(data: Dataset) -> TextVectors:
    return vectors_of(data)


def _profiler(data: Dataset, vectors: TextVectors, knowledge: np.ndarray) -> Profiler:
    table = profile_table(citations(data, knowledge), vectors)
    return Profiler("profiler", data, vectors, table, ProfileWeights(0.8, 0.3), QueryWeights(0.6, 0.4))


def _lexical(data: Dataset, vectors: TextVectors, knowledge: np.ndarray) -> LexicalProfile:
    known = citations(data, knowledge)
    return LexicalProfile("lexical", data, Lexicon(data), known, Bm25(), FieldWeights(), TermWeights())


def test_the_profiler_is_eq_3_to_5_computed_pair_by_pair(data: Dataset, vectors: TextVectors) -> None:
    task = make_task(data, "test", Mode.INDUCTIVE)
    contexts = data.contexts
    profiles = vectors.papers.astype(np.float64).copy()
    for paper in range(len(profiles)):
        said = task.knowledge[contexts.cited[task.knowledge] == paper]
        terms = []
        for citing in set(contexts.citing[said].tolist()):
            s = np.mean([vectors.contexts[row] for row in said if contexts.citing[row] == citing], axis=0)
            terms.append(0.8 * s + 0.3 * vectors.papers[citing])
        if terms:
            profiles[paper] += np.mean(terms, axis=0)
    query = 0.6 * vectors.contexts[task.queries] + 0.4 * vectors.papers[contexts.citing[task.queries]]
    cosine = (query / np.linalg.norm(query, axis=1)[:, None]) @ (profiles / np.linalg.norm(profiles, axis=1)[:, None]).T
    np.testing.assert_allclose(_profiler(data, vectors, task.knowledge).scores(task.queries), cosine, atol=1e-5)


def _several(data: Dataset, vectors: TextVectors, knowledge: np.ndarray) -> SeveralVectors:
    known = citations(data, knowledge)
    return SeveralVectors("several", data, vectors, known, QueryWeights(0.7, 0.3), content=True)


def _fused(data: Dataset, vectors: TextVectors, knowledge: np.ndarray) -> Fusion:
    popular = Popularity("popularity", data, citations(data, knowledge))
    return Fusion("fused", [(1.0, _profiler(data, vectors, knowledge)), (0.5, popular)])


def test_several_vectors_and_popularity_are_what_they_say(data: Dataset, vectors: TextVectors) -> None:
    task = make_task(data, "test", Mode.INDUCTIVE)
    contexts = data.contexts
    query = int(task.queries[0])
    asked = 0.7 * vectors.contexts[query] + 0.3 * vectors.papers[contexts.citing[query]]

    def cosine(other: np.ndarray) -> float:
        return float(asked @ other / np.linalg.norm(asked) / np.linalg.norm(other))

    scored = _several(data, vectors, task.knowledge).scores(task.queries[:1])[0]
    popular = Popularity("popularity", data, citations(data, task.knowledge)).scores(task.queries[:1])[0]
    for paper in range(len(data.papers)):
        said = task.knowledge[contexts.cited[task.knowledge] == paper]
        best = max([cosine(vectors.papers[paper]), *(cosine(vectors.contexts[row]) for row in said)])
        assert scored[paper] == pytest.approx(best, abs=1e-5)
        assert popular[paper] == pytest.approx(np.log1p(len(set(contexts.citing[said]))))


@pytest.mark.parametrize("make", [_profiler, _several, _fused, _lexical])
def test_own_citations_never_help(
    data: Dataset, vectors: TextVectors, make: Callable[[Dataset, TextVectors, np.ndarray], System]
) -> None:
    task = training_task(data, Mode.INDUCTIVE)
    scored = make(data, vectors, task.knowledge).scores(task.queries)
    leaking = 0
    for citing in np.unique(data.contexts.citing[task.queries]):
        mine = data.contexts.citing[task.queries] == citing
        rest = task.knowledge[data.contexts.citing[task.knowledge] != citing]
        without = make(data, vectors, rest).scores(task.queries[mine])
        cited = np.unique(data.contexts.cited[task.knowledge[data.contexts.citing[task.knowledge] == citing]])
        if make is not _lexical:
            np.testing.assert_allclose(scored[mine], without, atol=1e-6)
        else:  # idf and mean length are the collection's: order among the papers one cites is what must agree
            np.testing.assert_allclose(scored[mine][:, cited], without[:, cited], rtol=0.08, atol=0.05)
        leaking += len(cited)
    assert leaking > 50


def test_statistics_of_fewer_papers_change_weights_but_neither_papers_nor_contexts(data: Dataset) -> None:
    task = make_task(data, "test", Mode.INDUCTIVE)
    known, lexicon = citations(data, task.knowledge), Lexicon(data)
    papers = len(data.papers)

    def scores(counted: np.ndarray | None) -> np.ndarray:
        rules = Bm25(), FieldWeights(), TermWeights()
        return LexicalProfile("lexical", data, lexicon, known, *rules, counted).scores(task.queries)

    fresh = scores(None)
    np.testing.assert_array_equal(scores(np.ones(papers, np.bool_)), fresh)
    stale = scores(np.arange(papers) < papers // 2)
    np.testing.assert_array_equal(stale > 0, fresh > 0)
    assert not np.allclose(stale, fresh)


def test_equal_weights_make_the_lexical_profile_what_bm25s_computes(data: Dataset, vectors: TextVectors) -> None:
    task = make_task(data, "test", Mode.INDUCTIVE)
    known = citations(data, task.knowledge)
    ours = LexicalProfile(
        "ours", data, Lexicon(data), known, Bm25(1.2, 0.75), FieldWeights(1, 1, 1), TermWeights(5, 1.0, 0.0, 0.0)
    )
    said: dict[int, list[str]] = {}
    for row in known.contexts:
        said.setdefault(int(data.contexts.cited[row]), []).append(data.contexts.texts[int(row)])
    texts = [
        " ".join([data.papers.titles[paper], data.papers.abstracts[paper], *said.get(paper, [])])
        for paper in range(len(data.papers))
    ]
    theirs = bm25s.BM25(k1=1.2, b=0.75)
    theirs.index([[w for w in words(text) if w != "targetcit"] for text in texts], show_progress=False)
    for query, scored in zip(task.queries, ours.scores(task.queries), strict=True):
        tokens = [w for w in words(data.contexts.texts[int(query)]) if w in theirs.vocab_dict]
        expected = theirs.get_scores(tokens)
        np.testing.assert_allclose(scored / scored.max(), expected / expected.max(), rtol=1e-4, atol=1e-6)
        assert 0 < scored.max() < 1


def test_words_near_the_marker_count_more(data: Dataset) -> None:
    known = citations(data, np.empty(0, np.int64))
    rules = TermWeights(reach=2.0, floor=0.1, title=0.0)
    lexical = LexicalProfile("lexical", data, Lexicon(data), known, Bm25(), FieldWeights(), rules)
    weights = dict(zip(*(each.tolist() for each in lexical.word_values(0)), strict=True))
    text = words(data.contexts.texts[0])
    target = text.index("targetcit")
    columns = lexical._lexicon.columns(np.array(sorted(weights), np.uint32))
    idf = dict(zip(sorted(weights), lexical.idf[columns].tolist(), strict=True))
    expected = {
        term_id(word): (0.1 + 0.9 * np.exp(-abs(at - target) / 2)) * idf[term_id(word)]
        for at, word in enumerate(text)
        if at != target
    }
    assert weights == pytest.approx({term: each / sum(expected.values()) for term, each in expected.items()})


def test_plain_bm25_finds_aliases_only_in_contexts(data: Dataset) -> None:
    task = make_task(data, "test", Mode.INDUCTIVE)
    order = IdOrder(data)
    found = [
        (search(PlainBm25("bm25", data, known), data, task, 10, order).gold == 1).mean()
        for known in (None, citations(data, task.knowledge))
    ]
    assert found[1] > 2 * found[0]
    with pytest.raises(ValueError, match="LexicalProfile"):
        PlainBm25("bm25", data, citations(data, task.knowledge)).scores(task.knowledge)


def test_rankings_are_exact_and_ties_go_by_paper_id(data: Dataset) -> None:
    order = IdOrder(data)
    rng = np.random.default_rng(5)
    ids = list(data.papers.ids)
    for _ in range(200):
        scores = rng.integers(0, 4, len(ids)).astype(np.float32)  # many ties
        scores[rng.random(len(ids)) < 0.2] = -np.inf
        expected = sorted((p for p in range(len(ids)) if scores[p] > -np.inf), key=lambda p: (-scores[p], ids[p]))
        k = int(rng.integers(1, len(ids) + 3))
        assert order.top(scores, k).tolist() == expected[:k]
        for place, paper in enumerate(expected, start=1):
            assert order.rank_of(paper, scores) == place
    assert order.rank_of(0, np.full(len(ids), -np.inf, np.float32)) == 0
    assert len(order.top(np.full(len(ids), -np.inf, np.float32), 5)) == 0


def test_the_gold_rank_is_its_place_in_the_list(data: Dataset, vectors: TextVectors) -> None:
    task = make_task(data, "test", Mode.INDUCTIVE)
    ranking = search(_profiler(data, vectors, task.knowledge), data, task, DEPTH, IdOrder(data))
    for row, gold, rank in zip(ranking.papers, data.contexts.cited[task.queries], ranking.gold, strict=True):
        assert row[rank - 1] == gold


def test_the_second_phase_is_no_system_where_there_is_none(data: Dataset, vectors: TextVectors) -> None:
    task = make_task(data, "test", Mode.INDUCTIVE)
    known = citations(data, task.knowledge)
    none = Experiment(data, task, vectors, known, profile_table(known, vectors), IdOrder(data))
    model = packaged_model()
    with pytest.raises(ValueError, match='second phase is "none"'):
        SYSTEMS["second-phase"](none)
    assert SYSTEMS["second-phase"](replace(none, second_phase=model)).name == "second-phase"
