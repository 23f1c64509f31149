"""Training learns, resumes to identical weights and stops early; scores are cached and scoring resumes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from citewell.inference.sessions import Precision
from citewell.lab.davinci import scoring
from citewell.lab.davinci import train as training
from citewell.lab.davinci.batches import PairBatches, TrainingBatches
from citewell.lab.davinci.export import Storage, export_folder
from citewell.lab.davinci.exported import exported_weights
from citewell.lab.davinci.lists import NegativeSampling
from citewell.lab.davinci.model import ApartBert
from citewell.lab.davinci.runs import RunFolder
from citewell.lab.davinci.settings import TrainSettings
from citewell.lab.davinci.texts import PairTexts, make_mentions
from citewell.lab.davinci.train import TrainingData, learning_rate_share, train
from citewell.reranker.model_files import RerankerUnusable, read_model_folder
from citewell.reranker.pairs import TokenBudget
from tests.unit.davinci_world import lists_of, settings, write_dataset, write_encoder


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """One thread: the model is too small for more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainingData]:
    folder = tmp_path_factory.mktemp("davinci")
    data = write_dataset(folder / "data")
    lists = lists_of(data, "train"), lists_of(data, "validation")
    return write_encoder(folder / "encoder"), TrainingData(*lists, PairTexts(data))


def weights(run: RunFolder) -> dict[str, torch.Tensor]:
    stored: dict[str, torch.Tensor] = torch.load(run.checkpoint, weights_only=True)["model"]
    return stored


@pytest.mark.parametrize("killed_at", [2, 5, 7])
def test_a_killed_run_resumes_to_the_same_bits(
    world: tuple[Path, TrainingData], tmp_path: Path, killed_at: int
) -> None:
    encoder, data = world
    chosen = settings(encoder, heads=("davinci", "a1"), accumulate=2, validate_every=4, checkpoint_every=3)
    straight = train(chosen, data, tmp_path / "straight")
    # A kill between checkpoints loses the steps since the last one; they are repeated with the same result.
    train(chosen, data, tmp_path / "killed", until=killed_at)
    resumed = train(chosen, data, tmp_path / "killed")
    expected, found = weights(straight), weights(resumed)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert straight.weights.read_bytes() == resumed.weights.read_bytes()
    assert straight.log() == resumed.log()


def test_another_seed_gives_other_weights(world: tuple[Path, TrainingData], tmp_path: Path) -> None:
    encoder, data = world
    first, second = (train(settings(encoder, seed=seed, steps=2), data, tmp_path / str(seed)) for seed in (1, 2))
    assert any(not torch.equal(a, b) for a, b in zip(weights(first).values(), weights(second).values(), strict=True))


def test_it_learns_what_the_head_can_see(world: tuple[Path, TrainingData], tmp_path: Path) -> None:
    encoder, data = world
    heads = ("davinci", "davinci+margin", "a1")
    chosen = settings(encoder, heads=heads, steps=50, validate_every=50, freeze_encoder=True, head_learning_rate=3e-2)
    log = train(chosen, data, tmp_path).log()
    first, last = ({name: np.mean([e["loss"][name] for e in part]) for name in heads} for part in (log[:10], log[-10:]))
    # The cited paper is first in most lists, so a head that reads the prior can learn this.
    assert last["davinci"] < 0.8 * first["davinci"]
    assert last["davinci+margin"] < 0.8 * first["davinci+margin"]
    assert last["a1"] > last["davinci"]


def test_it_stops_when_validation_no_longer_improves(world: tuple[Path, TrainingData], tmp_path: Path) -> None:
    encoder, data = world
    frozen = settings(encoder, steps=40, validate_every=1, patience=3, learning_rate=0.0, head_learning_rate=0.0)
    log = train(frozen, data, tmp_path).log()
    assert len(log) == 4  # the first validation is the best, three more do not improve on it


def test_the_last_weights_can_be_kept_instead_of_the_best(world: tuple[Path, TrainingData], tmp_path: Path) -> None:
    encoder, data = world
    chosen = settings(encoder, steps=6, validate_every=1, patience=9)
    best, last = (train(dataclasses.replace(chosen, keep=keep), data, tmp_path / keep) for keep in ("best", "last"))
    state = weights(last)
    assert best.log() == last.log()
    assert all(torch.equal(state[name], tensor) for name, tensor in last.model().state_dict().items())
    mrr = [entry["validation_mrr"]["davinci"] for entry in best.log()]
    assert mrr.index(max(mrr)) < len(mrr) - 1, "the last is the best: the two could not be told apart"
    assert any(not torch.equal(state[name], tensor) for name, tensor in best.model().state_dict().items())


def test_frozen_parts_stay_as_they_were(world: tuple[Path, TrainingData], tmp_path: Path) -> None:
    encoder, data = world
    run = train(settings(encoder, steps=3, freeze_encoder=True), data, tmp_path / "frozen")
    before = training.load_encoder(str(encoder)).state_dict()
    after = {
        name.removeprefix("encoder."): tensor for name, tensor in weights(run).items() if name.startswith("encoder.")
    }
    assert all(torch.equal(before[name], after[name]) for name in before)
    run = train(settings(encoder, steps=3, freeze_words=True), data, tmp_path / "words")
    moved = {
        name
        for name, tensor in weights(run).items()
        if name.startswith("encoder.") and not torch.equal(tensor, before[name[8:]])
    }
    assert moved
    assert not any("word_embeddings" in name for name in moved)


def test_a_run_can_start_from_another(world: tuple[Path, TrainingData], tmp_path: Path) -> None:
    encoder, data = world
    first = train(settings(encoder, steps=2), data, tmp_path / "first")
    chosen = settings(
        encoder, start_from=str(first.path), heads=("davinci", "a4"), steps=1, learning_rate=0.0, head_learning_rate=0.0
    )
    second = weights(train(chosen, data, tmp_path / "second"))
    stored = first.model().state_dict()
    assert all(torch.equal(stored[name], second[name]) for name in stored)


def test_a_small_model_starts_from_layers_of_a_large_one(world: tuple[Path, TrainingData], tmp_path: Path) -> None:
    encoder, data = write_encoder(tmp_path / "three", layers=3), world[1]
    large = train(settings(encoder, steps=2), data, tmp_path / "large")
    rates = {"learning_rate": 0.0, "head_learning_rate": 0.0}
    chosen = settings(encoder, start_from=str(large.path), layers=2, steps=1, **rates)
    small = train(chosen, data, tmp_path / "small")
    before, after = large.model().state_dict(), small.model().state_dict()
    for kept, layer in enumerate((0, 2)):
        ends = [name.split(f"layer.{kept}.")[1] for name in after if f"layer.{kept}." in name]
        assert ends
        for end in ends:
            assert torch.equal(
                after[f"encoder.encoder.layer.{kept}.{end}"], before[f"encoder.encoder.layer.{layer}.{end}"]
            )
    assert not any("layer.2." in name for name in after)
    export_folder(small, tmp_path / "served", Storage.INT8, "small", (2025, 12, 31), chosen.budget)
    for wrong in (1, 4):
        with pytest.raises(ValueError, match="layers is"):
            train(dataclasses.replace(chosen, layers=wrong), data, tmp_path / f"wrong-{wrong}")


def test_a_small_model_shares_what_reads_the_sides(world: tuple[Path, TrainingData], tmp_path: Path) -> None:
    encoder, data = write_encoder(tmp_path / "three", layers=3), world[1]
    sides = {"apart_layers": 1, "side_positions": (9, 12)}
    large = train(settings(encoder, steps=2, **sides), data, tmp_path / "large")
    model = tmp_path / "served" / "model"
    export = partial(export_folder, storage=Storage.INT8, name="it", cut_off=(2025, 12, 31), budget=TokenBudget())
    export(large, model)
    chosen = settings(encoder, start_from=str(model), layers=2, steps=3, **sides)
    small = train(dataclasses.replace(chosen, freeze_sides=True), data, tmp_path / "small")
    export(small, tmp_path / "served" / "small", share_with=model)
    export(small, tmp_path / "served" / "whole")
    written = {file.name for file in (tmp_path / "served" / "small").iterdir()}
    assert written == {"pairs.onnx", "head.onnx", "config.json", "davinci.json"}
    shared, whole = (exported_weights(tmp_path / "served" / name) for name in ("small", "whole"))
    assert shared.keys() == whole.keys()
    assert max(float(np.abs(shared[name] - whole[name]).max()) for name in shared) < 1e-6
    (tmp_path / "served" / "small" / "sides.onnx").write_bytes(b"of an earlier export without --share-with")
    assert read_model_folder(tmp_path / "served" / "small").file("sides.onnx") == model / "sides.onnx"
    other = train(chosen, data, tmp_path / "other")
    with pytest.raises(ValueError, match=r"encoder\.embeddings\..* is not that of .*model"):
        export(other, tmp_path / "served" / "other", share_with=model)
    with pytest.raises(ValueError, match="not beside"):
        export(small, tmp_path / "elsewhere", share_with=model)
    (model / "sides.onnx").unlink()
    with pytest.raises(RerankerUnusable, match=r"served/model has no sides\.onnx"):
        read_model_folder(tmp_path / "served" / "small")


def test_a_teachers_scores_are_learned(world: tuple[Path, TrainingData], tmp_path: Path) -> None:
    encoder, data = world
    teacher = train(settings(encoder, steps=30, learning_rate=1e-3, validate_every=30), data, tmp_path / "teacher")

    def apart(run: RunFolder) -> float:
        """How far the candidates' shares lie from the teacher's, on average."""
        pairs = PairBatches(data.validation, data.texts, run.tokenizer(), run.settings.decay)
        both = [
            scoring.score_lists(each, pairs, scoring.torch_encode(each, "fp32"))["davinci"].logit
            for each in (run.model(), teacher.model())
        ]
        one, other = (torch.softmax(torch.from_numpy(np.nan_to_num(each, nan=-9.0)), dim=1) for each in both)
        return float((one - other).abs().sum(dim=1).mean())

    start = settings(encoder, steps=60, learning_rate=2e-3, head_learning_rate=5e-3, validate_every=60, seed=5)
    alone = train(start, data, tmp_path / "alone")
    taught = train(dataclasses.replace(start, teacher=str(teacher.path), taught=5.0), data, tmp_path / "taught")
    assert apart(taught) < apart(alone)


def test_other_settings_in_the_same_folder_are_refused(world: tuple[Path, TrainingData], tmp_path: Path) -> None:
    encoder, data = world
    train(settings(encoder, steps=2), data, tmp_path)
    with pytest.raises(ValueError, match="other settings"):
        train(settings(encoder, steps=4), data, tmp_path)


def test_a_run_starts_from_an_exported_model(world: tuple[Path, TrainingData], tmp_path: Path) -> None:
    encoder, data = world
    first = train(settings(encoder, steps=2), data, tmp_path / "first")
    served = tmp_path / "served"
    export_folder(first, served, Storage.FP32, "tiny", (2024, 10, 31), first.settings.budget)
    rates = {"learning_rate": 0.0, "head_learning_rate": 0.0}
    second = train(settings(encoder, start_from=str(served), steps=1, **rates), data, tmp_path / "second")
    stored, found = first.model().state_dict(), weights(second)
    assert all(torch.allclose(stored[name], found[name], atol=1e-7) for name in stored)


def test_the_length_of_a_run_may_change_until_its_rate_falls(world: tuple[Path, TrainingData], tmp_path: Path) -> None:
    encoder, data = world
    # The warm-up is one step whatever the length.
    chosen = settings(encoder, steps=12, cooldown=4, warmup=0.01, validate_every=20, checkpoint_every=1)
    train(chosen, data, tmp_path / "changed", until=3)
    shorter = dataclasses.replace(chosen, steps=8)
    changed = train(shorter, data, tmp_path / "changed")
    straight = train(shorter, data, tmp_path / "straight")
    assert changed.settings == shorter
    assert all(torch.equal(tensor, weights(straight)[name]) for name, tensor in weights(changed).items())
    with pytest.raises(ValueError, match=r"is at step 8, where its rate falls"):
        train(dataclasses.replace(chosen, steps=20), data, tmp_path / "changed")


def test_settings_survive_their_file(tmp_path: Path) -> None:
    chosen = TrainSettings(
        heads=("a1", "davinci+margin"), budget=TokenBudget(mentions=64), sampling=NegativeSampling(7, 0.2, 9)
    )
    (tmp_path / "settings.json").write_text(chosen.to_json())
    assert TrainSettings.read(tmp_path / "settings.json") == chosen


def test_the_rate_rises_and_falls_to_zero() -> None:
    shares = [learning_rate_share(step, 100, 0.1) for step in range(101)]
    assert shares[0] == pytest.approx(0.1)
    assert max(shares) == shares[9] == 1.0
    assert shares[100] == 0.0
    assert all(later < earlier for earlier, later in itertools.pairwise(shares[10:]))


def test_with_a_cooldown_the_rate_stays_at_its_peak_before() -> None:
    shares = [learning_rate_share(step, 100, 0.1, 20) for step in range(101)]
    assert shares[9:81] == [1.0] * 72
    assert shares[90] == pytest.approx(0.5)
    assert shares[100] == 0.0


def test_batches_hold_each_query_once_an_epoch_in_a_new_order(world: tuple[Path, TrainingData]) -> None:
    _, data = world
    run_pairs = PairBatches(data.lists, data.texts, _tokenizer(world))
    lengths = np.arange(len(data.lists), dtype=np.int32)
    batches = TrainingBatches(run_pairs, NegativeSampling(), 4, lengths, seed=1)
    orders = [batches._draw_order(epoch) for epoch in (0, 1)]
    assert all(sorted(order.ravel()) == list(range(len(data.lists))) for order in orders)
    assert not np.array_equal(*orders)
    first, again = batches.batch(3), batches.batch(3)
    np.testing.assert_array_equal(first.tokens.input_ids, again.tokens.input_ids)
    assert first.priors.shape == (4 * 5, 3)


def test_the_positive_comes_first_with_its_prior(world: tuple[Path, TrainingData]) -> None:
    _, data = world
    pairs = PairBatches(data.lists, data.texts, _tokenizer(world))
    lengths = np.zeros(len(data.lists), np.int32)
    batches = TrainingBatches(pairs, NegativeSampling(), 1, lengths, seed=1)
    row = int(batches._draw_order(0)[0, 0])
    position = int(data.lists.gold_position[row])
    assert batches.batch(0).priors[0, 0] == pytest.approx(0.95 ** (position + 1))


def test_scores_do_not_depend_on_neighbours_and_are_kept(
    world: tuple[Path, TrainingData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, data = world
    run = train(settings(encoder, steps=2), data, tmp_path / "run")
    model = run.model()
    pairs = PairBatches(data.validation, data.texts, run.tokenizer())
    encode = scoring.torch_encode(model, "fp32")
    whole = scoring.score_lists(model, pairs, encode)["davinci"]
    alone = scoring.score_lists(model, pairs.take(np.array([5])), encode)["davinci"]
    np.testing.assert_allclose(whole.logit[5], alone.logit[0], atol=1e-5)
    monkeypatch.setattr(scoring, "_BLOCK", 5)
    kept = scoring.score_cached(model, pairs, encode, tmp_path / "scores")["davinci"]
    np.testing.assert_allclose(kept.logit, whole.logit, atol=1e-5)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(scoring, "score_lists", refuse)
    again = scoring.score_cached(model, pairs, encode, tmp_path / "scores")["davinci"]
    np.testing.assert_array_equal(again.gate_text, kept.gate_text)
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    with pytest.raises(AssertionError, match="computed again"):
        scoring.score_cached(model, pairs, encode, tmp_path / "scores")


@pytest.mark.parametrize("apart", [0, 1])
def test_what_is_served_scores_as_what_was_trained(
    world: tuple[Path, TrainingData], tmp_path: Path, apart: int
) -> None:
    encoder, data = world
    run = train(
        settings(encoder, steps=2, heads=("davinci", "a4"), apart_layers=apart, side_positions=(9, 12)), data, tmp_path
    )
    model, pairs = run.model(), PairBatches(data.validation, data.texts, run.tokenizer())
    trained = scoring.score_lists(model, pairs, scoring.torch_encode(model, "fp32"))
    served = scoring.score_lists(model, pairs, scoring.served_encode(run.encoder_config, model, Precision.FP32, 1))
    for name in ("davinci", "a4"):
        np.testing.assert_allclose(trained[name].arrays, served[name].arrays, atol=1e-4)


def test_a_run_can_learn_to_read_the_sides_apart(world: tuple[Path, TrainingData], tmp_path: Path) -> None:
    encoder, data = world
    whole = train(settings(encoder, steps=2), data, tmp_path / "whole")
    apart = settings(encoder, steps=2, apart_layers=1, side_positions=(9, 12), start_from=str(whole.path))
    train(apart, data, tmp_path / "apart", until=1)
    run = train(apart, data, tmp_path / "apart")
    assert run.encoder_config["apart_layers"] == 1
    assert isinstance(run.model().encoder, ApartBert)
    with pytest.raises(ValueError, match="apart_layers is 2"):
        train(settings(encoder, apart_layers=2), data, tmp_path / "none left")
    with pytest.raises(ValueError, match="side_positions is 60, 12"):
        train(settings(encoder, apart_layers=1, side_positions=(60, 12)), data, tmp_path / "no room")


def test_mentions_fit_the_query_and_never_come_from_its_own_paper(world: tuple[Path, TrainingData]) -> None:
    data = world[1].texts.data
    contexts = data.contexts
    vectors = np.random.default_rng(0).normal(size=(len(contexts), 8))
    mentions = make_mentions(data, contexts.of_split("train"), vectors, count=2)
    shown = 0
    for query in range(len(contexts)):
        for paper in range(48):
            said = mentions.of(query, paper)
            known = [
                row
                for row in contexts.of_split("train")
                if contexts.cited[row] == paper and contexts.citing[row] != contexts.citing[query]
            ]
            best = sorted(known, key=lambda row: -float(vectors[row] @ vectors[query]))[:2]
            assert said == tuple(contexts.texts[int(row)] for row in best)
            shown += len(said)
    assert shown > 0


def test_mentions_reach_the_candidates_tokens(world: tuple[Path, TrainingData]) -> None:
    _encoder, data = world
    contexts = data.texts.data.contexts
    mentions = make_mentions(data.texts.data, contexts.of_split("train"), np.ones((len(contexts), 4)), count=1)
    budget = TokenBudget(context=12, query_title=6, candidate=10, mentions=12, window=60)
    tokens = _tokenizer(world, budget)
    plain = PairBatches(data.validation, data.texts, tokens)
    said = PairBatches(data.validation, dataclasses.replace(data.texts, mentions=mentions), tokens)
    cited = int(contexts.cited[contexts.of_split("train")[0]])
    without, shown = (each.of([0], [np.array([cited], np.int32)]).tokens.input_ids for each in (plain, said))
    assert shown.shape[1] > without.shape[1]
    assert plain.identity != said.identity


def _tokenizer(world: tuple[Path, TrainingData], budget: TokenBudget | None = None):  # type: ignore[no-untyped-def]
    from citewell.reranker.pairs import PairTokenizer

    return PairTokenizer.from_file(world[0] / "tokenizer.json", budget or settings(world[0]).budget)


@pytest.fixture
def lengths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the pairs of each batch that a model reads."""
    found: list[int] = []
    real = training.Reranker.encode

    def watched(model: training.Reranker, ids: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        found.append(ids.shape[1])
        return real(model, ids, *rest)

    monkeypatch.setattr(training.Reranker, "encode", watched)
    return found


def test_batches_take_the_shares_of_the_budget_in_turn(
    world: tuple[Path, TrainingData], tmp_path: Path, lengths: list[int]
) -> None:
    encoder, data = world
    budget = TokenBudget(context=16, query_title=8, candidate=20, window=64)
    train(settings(encoder, steps=2, accumulate=2, budget=budget, shares=(1.0, 0.5)), data, tmp_path, until=2)
    assert min(lengths[0], lengths[2]) > max(lengths[1], lengths[3])


def test_batches_show_abstracts_and_leave_them_out_in_turn(
    world: tuple[Path, TrainingData], tmp_path: Path, lengths: list[int]
) -> None:
    encoder, data = world
    budget = TokenBudget(context=16, query_title=8, candidate=80, window=200)
    train(settings(encoder, steps=2, accumulate=2, budget=budget, abstracts=(True, False)), data, tmp_path, until=2)
    assert min(lengths[0], lengths[2]) > max(lengths[1], lengths[3])


def test_the_second_loss_is_that_without_the_retrievals_score(world: tuple[Path, TrainingData], tmp_path: Path) -> None:
    encoder, data = world

    def first_loss(**weights: float) -> float:
        folder = tmp_path / str(weights)
        log = train(settings(encoder, steps=1, validate_every=1, **weights), data, folder).log()
        return float(log[0]["loss"]["davinci"])

    with_score, without = first_loss(joined=0.5), first_loss()
    assert with_score != pytest.approx(without, abs=1e-4)
    assert first_loss(joined=0.5, alone=2.0) == pytest.approx(with_score + 2 * without, abs=1e-4)
