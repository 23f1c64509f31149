"""Confidence: accepted files, and the effect of a calibrated table on an answer."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citewell.index.second_phase_model import packaged_model
from citewell.profiler.term_weights import PACKAGED, find_term_weights
from citewell.profiler.window_encoder import load_window_encoder
from citewell.recommender.confidence import (
    FEATURES,
    BadCalibration,
    Calibration,
    Signals,
    confidences,
    features,
    read_calibration,
    scorer,
)
from citewell.recommender.settings import PACKAGED_CALIBRATION, RecommenderSettings
from citewell.reranker.model_files import read_model_folder
from citewell.reranker.settings import PACKAGED_MODEL, SMALL_MODEL
from citewell.scholarly.queries import Strategy

TABLE = {
    "strategy": "HYBRID",
    "reranked": True,
    "encoder": "e1",
    "reranker": "r1",
    "features": ["retrieval", "rerank"],
    "weights": [2.0, 0.5],
    "bias": -3.0,
}
PLAIN = {**TABLE, "reranked": False, "reranker": "", "features": ["retrieval", "margin"], "bias": -2.0}


def read(*tables: object) -> Calibration:
    return read_calibration(json.dumps({"version": 1, "tables": tables}))


def test_the_packaged_file_can_be_read() -> None:
    read_calibration(PACKAGED_CALIBRATION.read_text("utf-8"))


def test_a_table_counts_for_its_strategy_encoder_and_reranker_alone() -> None:
    calibration = read(TABLE, PLAIN)
    assert calibration.table(Strategy.HYBRID, "e1", "r1") is calibration.tables[0]
    assert calibration.table(Strategy.HYBRID, "e1", "") is calibration.tables[1]
    for strategy, encoder, reranker in (("PROFILE", "e1", "r1"), ("HYBRID", "e2", "r1"), ("HYBRID", "e1", "r2")):
        assert calibration.table(Strategy(strategy), encoder, reranker) is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "no JSON"),
        ("[]", '"version": 1'),
        ('{"version": 2, "tables": []}', '"version": 1'),
        (json.dumps({"version": 1, "tables": [{**TABLE, "strategy": "BEST"}]}), r"tables\[0\]: ValueError"),
        (json.dumps({"version": 1, "tables": [{"strategy": "HYBRID"}]}), r"tables\[0\]: KeyError 'encoder'"),
        (json.dumps({"version": 1, "tables": [TABLE, {**TABLE, "weights": [1.0]}]}), r"tables\[1\]: 2 features, 1 w"),
        (json.dumps({"version": 1, "tables": [{**TABLE, "features": ["retrieval", "luck"]}]}), "'luck'"),
        (json.dumps({"version": 1, "tables": [{**TABLE, "bias": math.inf}]}), "finite"),
        (json.dumps({"version": 1, "tables": [{**TABLE, "reranker": ""}]}), "reranker is empty"),
        (json.dumps({"version": 1, "tables": [{**PLAIN, "features": ["rerank", "margin"]}]}), "needs a reranker"),
        (json.dumps({"version": 1, "tables": [TABLE, TABLE]}), "repeats"),
        (json.dumps({"version": 1, "tables": [{**TABLE, "second_phase_weight": 1}]}), "needs a second phase"),
    ],
)
def test_a_file_that_cannot_be_used_says_where(text: str, complaint: str) -> None:
    with pytest.raises(BadCalibration, match=complaint):
        read_calibration(text)


def test_the_margin_is_to_the_best_other_paper() -> None:
    signals = {
        "a": Signals(0.9, 0.6, 0.1, None, 1),
        "b": Signals(0.7, 0.4, 0.1, None, 2),
        "c": Signals(0.4, 0.4, 0.0, None, 3),
    }
    found = features(signals)
    assert {paper_id: values["margin"] for paper_id, values in found.items()} == pytest.approx(
        {"a": 0.2, "b": -0.2, "c": -0.5}
    )
    assert found["c"]["log_rank"] == pytest.approx(math.log(3))
    assert features({"a": signals["a"]})["a"]["margin"] == 0.0


def test_of_a_reranked_answer_only_what_was_read_has_a_confidence() -> None:
    signals = {"a": Signals(0.9, 0.6, 0.1, 0.8, 1), "b": Signals(0.7, 0.4, 0.1, None, 2)}
    told = confidences(read(TABLE), Strategy.HYBRID, "e1", "r1", signals)
    assert told == {"a": pytest.approx(1 / (1 + math.exp(3.0 - 1.8 - 0.5 * math.log(4))))}


def test_an_unrelated_query_gets_a_low_confidence_by_its_retrieval_scores() -> None:
    calibration = read({**TABLE, "weights": [8.0, 0.3], "bias": -9.0})
    related = {"a": Signals(1.4, 0.8, 0.2, 0.95, 1), "b": Signals(0.9, 0.6, 0.1, 0.4, 2)}
    unrelated = {"a": Signals(0.35, 0.35, 0.0, 0.95, 1), "b": Signals(0.34, 0.34, 0.0, 0.4, 2)}
    sure = confidences(calibration, Strategy.HYBRID, "e1", "r1", related)
    unsure = confidences(calibration, Strategy.HYBRID, "e1", "r1", unrelated)
    assert sure is not None
    assert unsure is not None
    assert sure["a"] > 0.9
    assert unsure["a"] < 0.05


def packaged_scorer(*, window: bool = True) -> tuple[Calibration, str]:
    """The calibration that ships, and the name of the encoder and learned parts that ship."""
    calibration = read_calibration(PACKAGED_CALIBRATION.read_text("utf-8"))
    encoder = calibration.tables[0].encoder.partition("+")[0]
    learned, read = find_term_weights(PACKAGED), load_window_encoder(PACKAGED, encoder)
    assert learned is not None
    assert read is not None
    return calibration, scorer(encoder, "", learned.digest, *([read.hash] if window else []))


@pytest.mark.parametrize("model", [PACKAGED_MODEL, SMALL_MODEL, None], ids=["default", "small", "not reranked"])
def test_there_is_a_table_for_the_parts_that_ship(model: Path | None) -> None:
    calibration, scored_by = packaged_scorer()
    reranker, weight = (read_model_folder(model).hash, chosen_weight()) if model else ("", 0.0)
    second_phase = packaged_model().hash
    table = calibration.table(Strategy.HYBRID, scored_by, reranker, second_phase, weight)
    assert table is not None
    assert (table.second_phase, table.second_phase_weight) == (second_phase, weight)


@pytest.mark.parametrize("model", [PACKAGED_MODEL, None], ids=["default", "not reranked"])
def test_there_is_a_table_without_second_phase_and_window_encoder(model: Path | None) -> None:
    reranker = read_model_folder(model).hash if model else ""
    for window in (True, False):
        calibration, scored_by = packaged_scorer(window=window)
        assert calibration.table(Strategy.HYBRID, scored_by, reranker) is not None


def chosen_weight() -> float:
    return float(RecommenderSettings.model_fields["second_phase_weight"].default)


def test_nothing_calibrated_is_no_confidence() -> None:
    signals = {"a": Signals(0.9, 0.6, 0.1, None, 1)}
    assert confidences(read(TABLE), Strategy.HYBRID, "e1", "", signals) is None
    assert confidences(read(PLAIN), Strategy.HYBRID, "e1", "", {}) == {}


NUMBERS = st.floats(-10, 10)
SIGNALS = st.builds(Signals, NUMBERS, NUMBERS, NUMBERS, st.none() | st.floats(0, 1), st.integers(1, 1000))


@given(st.dictionaries(st.sampled_from("abcdef"), SIGNALS), st.lists(NUMBERS, min_size=8, max_size=8), NUMBERS)
def test_every_confidence_is_a_probability(signals: dict[str, Signals], weights: list[float], bias: float) -> None:
    every = {"features": FEATURES, "weights": weights, "bias": bias}
    calibration = read(
        {**TABLE, **every},
        {**PLAIN, **every, "features": [n for n in FEATURES if n != "rerank"], "weights": weights[1:]},
    )
    told = confidences(calibration, Strategy.HYBRID, "e1", "r1", signals)
    assert told is not None
    assert all(0 <= value <= 1 for value in told.values())


def test_a_table_for_a_model_serves_every_runtime_of_it() -> None:
    calibration = read(TABLE, PLAIN, {**TABLE, "reranker": "r1-fp32", "bias": 1.0})
    for runtime in ("r1", "r1-bf16", "r1-davinci-3"):
        table = calibration.table(Strategy.HYBRID, "e1", runtime)
        assert table is not None
        assert table.bias == TABLE["bias"]
    own = calibration.table(Strategy.HYBRID, "e1", "r1-fp32")
    assert own is not None
    assert own.bias == 1.0
    assert calibration.table(Strategy.HYBRID, "e1", "r2-bf16") is None


def test_a_table_counts_for_the_order_it_was_made_for() -> None:
    """The second phase changes which candidates come first, and with that what a rank is worth."""
    calibration = read({**PLAIN, "bias": -2.0}, {**PLAIN, "bias": 2.0, "second_phase": "p1"})
    signals = {"a": Signals(0.9, 0.6, 0.1, None, 1, second=2.0), "b": Signals(1.1, 0.8, 0.1, None, 2, second=0.5)}
    first = confidences(calibration, Strategy.HYBRID, "e1", "", signals)
    second = confidences(calibration, Strategy.HYBRID, "e1", "", signals, "p1")
    assert first is not None
    assert second is not None
    assert second["a"] > first["a"]
    assert confidences(calibration, Strategy.HYBRID, "e1", "", signals, "p2") == first, "the table for any order"
    assert confidences(read({**PLAIN, "second_phase": "p1"}), Strategy.HYBRID, "e1", "", signals, "p2") is None
    told = features(signals)["b"]
    assert (told["margin"], told["second"], told["second_margin"]) == (pytest.approx(0.2), 0.5, -1.5)


def test_a_table_counts_for_the_weight_of_the_second_phase_it_was_made_for() -> None:
    """The margin is that of the scores which rank: of J where the table was made with it, else of the reranker's."""
    margin = {**TABLE, "features": ["margin"], "weights": [1.0], "bias": 0.0}
    joined = {**margin, "second_phase": "p1", "second_phase_weight": 1.0}
    signals = {
        "a": Signals(0.9, 0.6, 0.1, 0.5, 1, second=2.0, joined=2.0),
        "b": Signals(1.1, 0.8, 0.1, 0.5, 2, second=0.5, joined=0.5),
    }

    def told(weight: float, *tables: object) -> dict[str, float]:
        found = confidences(read(*tables), Strategy.HYBRID, "e1", "r1", signals, "p1", weight)
        assert found is not None
        return {paper_id: math.log(value / (1 - value)) for paper_id, value in found.items()}

    assert told(1.0, margin, joined) == {"a": pytest.approx(1.5), "b": pytest.approx(-1.5)}
    for weight in (0.0, 2.0):
        assert told(weight, margin, joined) == {"a": pytest.approx(0.0), "b": pytest.approx(0.0)}, "for any order"
    assert confidences(read(joined), Strategy.HYBRID, "e1", "r1", signals, "p1", 2.0) is None
