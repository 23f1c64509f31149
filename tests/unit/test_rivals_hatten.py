"""HAtten: its published shape, gradients, that it learns, its mined sets, and that training resumes exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the lab extra (torch, transformers) is not installed")

import torch

from citewell.lab.experiment import Experiment
from citewell.lab.retrieval import search
from citewell.lab.rivals.hatten import HATTEN, HAttenLearner, HAttenSettings
from citewell.lab.rivals.hatten_model import HAttenEncoder, MultiHeadPooling, Paragraphs, ParagraphType
from citewell.lab.rivals.word_vectors import Words, learn_vectors, read_vectors
from citewell.lab.training import Budget, TrainingRun, settings_json, train
from tests.rivals_world import small_experiment, write_word_vectors

SMALL = HAttenSettings(
    dimensions=32,
    heads=4,
    inner=32,
    dropout=0.0,
    least_often=1,
    margin=0.3,
    batch=25,
    mined=2,
    across=True,
    refresh=10,
    rate=3e-3,
    mined_depth=5,
    validation_queries=20,
)
PUBLISHED = HAttenSettings()


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return small_experiment(tmp_path)


def learner(experiment: Experiment, settings: HAttenSettings = SMALL) -> HAttenLearner:
    return HAttenLearner(settings, experiment, lambda *_: None)


def published_encoder() -> HAttenEncoder:
    vectors = torch.randn(100, PUBLISHED.dimensions)
    return HAttenEncoder(vectors, PUBLISHED.heads, PUBLISHED.inner, dropout=0.0, longest=512)


def field(kind: ParagraphType, *rows: list[int]) -> Paragraphs:
    longest = max(map(len, rows))
    return Paragraphs(kind, torch.tensor([row + [0] * (longest - len(row)) for row in rows]))


def test_the_encoder_has_the_published_shape() -> None:
    encoder = published_encoder()
    attention, inner, norms = 4 * (200 * 200 + 200), 2 * 200 * 1024 + 1024 + 200, 4 * 200
    pooling = (200 * 8 + 8) + 2 * (200 * 200 + 200)
    expected = 2 * (attention + inner + norms + pooling) + 3 * 200  # two levels, three types of paragraphs
    assert sum(each.numel() for each in encoder.parameters()) == expected == 1_309_464
    assert not encoder.words.requires_grad
    found = encoder([field(ParagraphType.TITLE, [1, 2, 3], [4]), field(ParagraphType.CONTEXT, [5, 6], [7, 8])])
    assert found.shape == (2, 200)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(2))


def test_pooling_weighs_values_by_a_softmax_over_the_places_of_each_head() -> None:
    torch.manual_seed(1)
    pooling = MultiHeadPooling(6, 2)
    states, absent = torch.randn(1, 4, 6), torch.tensor([[False, False, False, True]])
    heads = []
    for head in range(2):
        scores = torch.stack([pooling.score(states[0, place])[head] for place in range(3)]).softmax(dim=0)
        values = [pooling.value(states[0, place])[3 * head : 3 * head + 3] for place in range(3)]
        heads.append(sum(weight * value for weight, value in zip(scores, values, strict=True)))
    torch.testing.assert_close(pooling(states, absent)[0], pooling.out(torch.relu(torch.cat(heads))))


def test_padding_missing_fields_and_neighbours_in_a_batch_change_no_vector() -> None:
    encoder = published_encoder().eval()
    title = field(ParagraphType.TITLE, [1, 2, 3])
    alone = encoder([title])
    without_abstract = encoder([title, field(ParagraphType.ABSTRACT, [0])])
    beside = encoder(
        [field(ParagraphType.TITLE, [1, 2, 3], list(range(1, 30))), field(ParagraphType.ABSTRACT, [0], [9, 8])]
    )
    torch.testing.assert_close(without_abstract, alone)
    torch.testing.assert_close(beside[:1], alone)
    assert torch.isfinite(encoder([field(ParagraphType.TITLE, [0]), field(ParagraphType.ABSTRACT, [0])])).all()


def test_type_and_order_of_words_count() -> None:
    encoder = published_encoder().eval()
    title, turned = field(ParagraphType.TITLE, [1, 2, 3]), field(ParagraphType.TITLE, [3, 2, 1])
    context = field(ParagraphType.CONTEXT, [1, 2, 3])
    assert not torch.allclose(encoder([title]), encoder([context]), atol=1e-3)
    assert not torch.allclose(encoder([title]), encoder([turned]), atol=1e-3)


def test_gradients_flow_to_every_parameter(experiment: Experiment) -> None:
    learning = learner(experiment)
    torch.autograd.backward(learning.loss(np.arange(50), np.random.default_rng(0)))
    still = [
        name for name, each in learning.model.named_parameters() if each.grad is None or not each.grad.abs().sum() > 0
    ]
    assert still == []


def test_it_overfits_fifty_queries_and_its_loss_falls(experiment: Experiment, tmp_path: Path) -> None:
    file = write_word_vectors(tmp_path / "vectors.txt", experiment.data, 32)
    settings = replace(SMALL, word_vectors=str(file), batch=50, refresh=1000)
    learning = learner(experiment, settings)
    untrained = HATTEN.load(settings, experiment, learning.weights())
    fifty = learning._queries = np.unique(learning._queries)[:50]
    losses = [learning.step(number) for number in range(120)]
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) / 3
    train_task = replace(experiment.of_split("train").task, queries=fifty)
    trained = HATTEN.load(settings, experiment, learning.weights())
    before, after = (
        search(each, experiment.data, train_task, 5, experiment.order).gold for each in (untrained, trained)
    )
    assert np.mean(before == 1) < 0.4
    assert np.mean(after == 1) > 0.7


def test_mined_sets_hold_older_papers_that_are_neither_cited_nor_evaluated(experiment: Experiment) -> None:
    learning = learner(experiment)
    learning._mine(10)
    data = experiment.data
    evaluated = np.union1d(data.split_papers["validation"], data.split_papers["test"])
    assert (learning._mined >= 0).any()
    for query, mined in zip(learning._queries, learning._mined, strict=True):
        mined = mined[mined >= 0]
        assert data.contexts.cited[query] not in mined
        assert not np.isin(mined, evaluated).any()
        assert (data.papers.last_day[mined] < data.contexts.first_day[query]).all()


def test_a_stopped_run_reaches_the_same_weights_as_one_that_was_not(experiment: Experiment, tmp_path: Path) -> None:
    found = []
    for name, stops in (("whole", (14,)), ("stopped", (4, 12, 14))):
        run = TrainingRun(tmp_path / name)
        run.begin(settings_json(SMALL))
        for steps in stops:
            train(learner(experiment), run, Budget(cpu_minutes=60, steps=steps, validate_every=60))
        found.append(torch.load(run.checkpoint, weights_only=True)["weights"]["encoder"])
    for name, tensor in found[0].items():
        torch.testing.assert_close(tensor, found[1][name], rtol=0, atol=0)


def test_other_settings_in_the_folder_of_a_run_are_an_error(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path)
    run.begin(settings_json(SMALL))
    with pytest.raises(ValueError, match="other settings"):
        run.begin(settings_json(PUBLISHED))
    with pytest.raises(ValueError, match="no setting 'learning'"):
        HATTEN.read_settings({"learning": 1})


def test_word_vectors_come_from_a_file(experiment: Experiment, tmp_path: Path) -> None:
    file = tmp_path / "vectors.txt"
    file.write_text("parsing 1 0\nunheard 5 5\nspeech 0 1\n", "utf-8")
    words, vectors = read_vectors(file, Words(["speech", "parsing", "tagging"]))
    assert words.words == ["parsing", "speech"]
    np.testing.assert_array_equal(vectors, [[0, 0], [1, 0], [0, 1]])
    file.write_text("parsing 1 0\nspeech 0\n", "utf-8")
    with pytest.raises(ValueError, match="line 2: 1 numbers"):
        read_vectors(file, words)


def test_words_that_stand_in_the_same_places_get_similar_vectors() -> None:
    texts = [f"the {animal} sleeps on {place}" for animal in ("cat", "dog") for place in ("roofs", "beds")] * 5
    texts += [f"a {tree} grows in {place}" for tree in ("oak", "elm") for place in ("woods", "parks")] * 5
    words = Words.frequent(texts, 100, 1)
    vectors = learn_vectors(words.ids(texts, 8), len(words), 6)
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    at = {word: unit[number] for number, word in enumerate(words.words, 1)}
    assert at["cat"] @ at["dog"] > at["cat"] @ at["oak"] + 0.3
    assert not vectors[0].any()


def test_long_contexts_are_cut_around_the_missing_citation() -> None:
    words = Words(["a", "b", "c", "d", "targetcit"])
    cut = words.ids(["a a a a a b TARGETCIT c d d d d"], 4, around="targetcit")
    assert [words.words[number - 1] for number in cut[0]] == ["a", "b", "targetcit", "c"]
