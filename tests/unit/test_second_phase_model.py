"""The second phase's model: what its file must say, and how it explains its scores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from citewell.index.second_phase import FEATURES, Candidates, Matches, features, standardised
from citewell.index.second_phase_model import (
    REST,
    BadModel,
    SecondPhase,
    configured_model,
    model_text,
    packaged_model,
    read_model,
)
from citewell.runtime.settings import UnknownSetting
from citewell.scholarly.second_phase import PARTS, SecondPhaseQuery

NAMES = ("score", "in_degree", "near_words")
ARRAYS = {
    "direct": np.array([1.0, 0.5, 2.0]),
    "hidden": np.array([[1.0, -1.0, 0.0], [0.0, 1.0, 1.0]]),
    "bias": np.array([0.1, -0.2]),
    "out": np.array([3.0, -1.0]),
}
TEXT = model_text(NAMES, ARRAYS, {"trained on": "nothing"})


def some(count: int, seed: int = 0) -> tuple[SecondPhaseQuery, Candidates]:
    draw = np.random.default_rng(seed)
    owner = np.sort(draw.integers(0, count, 5 * count))
    words = Matches(owner, draw.integers(0, 4, len(owner)), draw.integers(1, 9, len(owner)) / 2)
    title = Matches(np.arange(0, count, 2), np.zeros((count + 1) // 2, np.int64), np.ones((count + 1) // 2))
    query = SecondPhaseQuery(*draw.random((2, 8)).astype(np.float32), np.full((len(PARTS), 4), 0.25, np.float32))
    numbers = [np.sort(draw.random(count))[::-1] for _ in range(3)]
    profiles = draw.random((count, 8)).astype(np.float32)
    sizes = np.full(count, 5.0)
    return query, Candidates(*numbers, profiles, words, sizes * 10, title, sizes, draw.integers(0, 30, count) * 1.0)


def test_a_score_is_the_sum_of_its_shares_and_the_networks_output() -> None:
    model = read_model(TEXT)
    query, candidates = some(40)
    x = standardised(features(query, 50.0, candidates), NAMES)
    output = x @ ARRAYS["direct"] + np.maximum(x @ ARRAYS["hidden"].T + ARRAYS["bias"], 0) @ ARRAYS["out"]
    shares = model.shares(query, 50.0, candidates)
    assert model.groups == (FEATURES["score"], FEATURES["in_degree"], FEATURES["near_words"], REST)
    assert np.allclose(shares.sum(axis=1), output)


def test_the_best_score_comes_first_and_equal_ones_by_key() -> None:
    query, candidates = some(30)
    ranked = SecondPhase(read_model(TEXT), query).ranked(50.0, candidates, [str(at) for at in range(30)], 30)
    assert [one.score for one in ranked] == sorted((one.score for one in ranked), reverse=True)
    assert sorted(one.first_rank for one in ranked) == list(range(1, 31))
    few = SecondPhase(read_model(TEXT), query).ranked(50.0, candidates, [str(at) for at in range(30)], 7)
    assert [one.first_rank for one in few] == [one.first_rank for one in ranked[:7]]
    alike = read_model(model_text(NAMES, {name: 0 * values for name, values in ARRAYS.items()}, {}))
    keys = [f"{29 - at:02}" for at in range(30)]
    assert [keys[one.first_rank - 1] for one in SecondPhase(alike, query).ranked(50.0, candidates, keys, 30)] == sorted(
        keys
    )


def test_features_are_the_distance_from_the_mean_of_the_list() -> None:
    query, candidates = some(25)
    found = features(query, 50.0, candidates)
    assert set(found) == set(FEATURES)
    values = standardised(found, tuple(FEATURES))
    assert np.allclose(values.mean(axis=0), 0, atol=1e-9)
    assert np.allclose(values[:, list(FEATURES).index("in_degree")].std(), 1, atol=0.01)
    alone = features(*some(1)[:1], 0.0, some(1)[1])
    assert np.array_equal(standardised(alone, tuple(FEATURES)), np.zeros((1, len(FEATURES))))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "no JSON"),
        (json.dumps({"version": 2}), '"version": 1'),
        (json.dumps({"version": 1, "features": ["score"]}), "direct"),
        (TEXT.replace('"in_degree"', '"luck"'), "luck"),
        (TEXT.replace('"in_degree",', ""), "shape"),
        (TEXT.replace("0.5", "NaN"), "finite"),
    ],
)
def test_a_file_that_is_no_model_says_why(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=says):
        read_model(text)
    path = tmp_path / "model.json"
    path.write_text(text)
    with pytest.raises(UnknownSetting, match="CITEWELL_INDEX__SECOND_PHASE"):
        configured_model(str(path))


def test_the_packaged_model_is_the_default_and_none_switches_it_off() -> None:
    assert configured_model("none") is None
    default = configured_model("packaged")
    assert default is not None
    assert default.hash == packaged_model().hash


def test_the_hash_tells_models_apart() -> None:
    other = model_text(NAMES, {**ARRAYS, "bias": np.array([0.1, -0.3])}, {})
    assert read_model(TEXT).hash != read_model(other).hash
    assert read_model(TEXT).hash == read_model(model_text(NAMES, ARRAYS, {"another": "card"})).hash
