"""Confidence: how likely an item is to be cited where the query asks, from tables that the lab calibrates.

A table is a logistic regression over a few features of an item. It counts for one strategy, one encoder, and either one
reranker or none. An answer that no table was made for has no confidence.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from citewell.recommender.joined_scores import log_odds
from citewell.scholarly.queries import Strategy

VERSION = 1
FEATURES = ("retrieval", "profile", "lexical", "second", "second_margin", "rerank", "margin", "log_rank")
"""retrieval: the retrieval score; profile, lexical: its cosine and its lexical score before weighting; second,
second_margin: the score of the second phase, and that score less the best other one, 0 where it did not rank; rerank:
log-odds of the reranker's score; margin: the retrieval score, or where reranked the score that ranks (`joined_scores`),
less the best other one;
log_rank: the logarithm of the last stage's rank."""


class BadCalibration(ValueError):
    """The calibration file cannot be used; says where."""


@dataclass(frozen=True, slots=True)
class Table:
    """A calibrated logistic regression."""

    strategy: Strategy
    encoder: str
    reranker: str
    """Hash of the reranker's model; empty = for answers in the order of the retrieval."""
    features: tuple[str, ...]
    weights: tuple[float, ...]
    bias: float
    second_phase: str = ""
    """Hash of the second phase's model; empty = for every order of candidates that no other table is for."""
    second_phase_weight: float = 0.0
    """Weight of its scores beside the reranker's (`joined_scores`)."""

    @property
    def kind(self) -> tuple[Strategy, str, str, str, float]:
        """The answers that the table counts for."""
        return self.strategy, self.encoder, self.reranker, self.second_phase, self.second_phase_weight

    def confidence(self, values: Mapping[str, float]) -> float:
        """A probability."""
        logit = self.bias + sum(w * values[name] for name, w in zip(self.features, self.weights, strict=True))
        return 1 / (1 + math.exp(-max(-500.0, min(500.0, logit))))


@dataclass(frozen=True, slots=True)
class Calibration:
    """All tables of a file."""

    tables: tuple[Table, ...] = ()

    def table(
        self, strategy: Strategy, encoder: str, reranker: str, second_phase: str = "", weight: float = 0.0
    ) -> Table | None:
        """The table for answers of this kind, if there is one.

        `reranker` names the model, then what computes it ("3f2a…-bf16"). Runtimes agree to a thousandth, so a table
        for the model serves all of them; a table may also name one.
        """
        model, _, _ = reranker.partition("-")
        kinds = {table.kind: table for table in self.tables}
        for order in ((second_phase, weight), ("", 0.0)):
            for named in (reranker, model):
                if table := kinds.get((strategy, encoder, named, *order)):
                    return table
        return None


def scorer(encoder: str, *learned: str) -> str:
    """What a table names as its encoder: the model, and hashes of what HYBRID has learned beside it, in the order of
    query map, term weights, window encoder."""
    return "+".join(filter(None, (encoder, *learned)))


NOT_CALIBRATED = Calibration()


def read_calibration(text: str) -> Calibration:
    """The tables of a calibration file, or BadCalibration."""
    try:
        told: Any = json.loads(text)
    except ValueError as error:
        raise BadCalibration(f"it is no JSON: {error}") from None
    if not isinstance(told, dict) or told.get("version") != VERSION or not isinstance(told.get("tables"), list):
        raise BadCalibration(f'it must be an object with "version": {VERSION} and a list "tables"')
    tables = tuple(_table(number, table) for number, table in enumerate(told["tables"]))
    keys = [table.kind for table in tables]
    for number, key in enumerate(keys):
        if key in keys[:number]:
            raise BadCalibration(
                f"tables[{number}] repeats the strategy, encoder, reranker, second phase and weight of another"
            )
    return Calibration(tables)


def _table(number: int, told: Any) -> Table:
    where = f"tables[{number}]"
    try:
        table = Table(
            Strategy(told["strategy"]),
            str(told["encoder"]),
            str(told["reranker"]) if told["reranked"] else "",
            tuple(told["features"]),
            tuple(map(float, told["weights"])),
            float(told["bias"]),
            str(told.get("second_phase", "")),
            float(told.get("second_phase_weight", 0.0)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadCalibration(f"{where}: {type(error).__name__} {error}") from None
    if told["reranked"] and not table.reranker:
        raise BadCalibration(f"{where}: reranked, but reranker is empty")
    if len(table.features) != len(table.weights):
        raise BadCalibration(f"{where}: {len(table.features)} features, {len(table.weights)} weights")
    if unknown := [name for name in table.features if name not in FEATURES]:
        raise BadCalibration(f"{where}: features {unknown} are unknown; known are {', '.join(FEATURES)}")
    if not all(map(math.isfinite, (*table.weights, table.bias, table.second_phase_weight))):
        raise BadCalibration(f"{where}: weights, bias and second_phase_weight must be finite numbers")
    if table.second_phase_weight and not (table.second_phase and table.reranker):
        raise BadCalibration(f"{where}: second_phase_weight needs a second phase and a reranker")
    if table.reranker == "" and "rerank" in table.features:
        raise BadCalibration(f"{where}: the feature rerank needs a reranker")
    return table


@dataclass(frozen=True, slots=True)
class Signals:
    """What the stages say of one paper."""

    retrieval: float
    profile: float
    lexical: float
    rerank: float | None
    """The reranker's score; None where it did not read the paper."""
    rank: int
    """The rank in the last stage that ranked the paper, from 1."""
    second: float | None = None
    """The score of the second phase, if it ranked the paper."""
    joined: float | None = None
    """J of `joined_scores`, if that ranked the paper."""


def features(signals: Mapping[str, Signals]) -> dict[str, dict[str, float]]:
    """The features by paper id: of all papers that the reranker read, or of all where it read none."""
    read = {paper_id: each for paper_id, each in signals.items() if each.rerank is not None}
    told = read or signals
    odds = {paper_id: 0.0 if each.rerank is None else log_odds(each.rerank) for paper_id, each in told.items()}
    margins = _margins({paper_id: _last(each, odds[paper_id]) for paper_id, each in told.items()})
    second_margins = _margins({paper_id: each.second or 0.0 for paper_id, each in told.items()})
    return {
        paper_id: {
            "retrieval": each.retrieval,
            "profile": each.profile,
            "lexical": each.lexical,
            "second": each.second or 0.0,
            "second_margin": second_margins[paper_id],
            "rerank": odds[paper_id],
            "margin": margins[paper_id],
            "log_rank": math.log(each.rank),
        }
        for paper_id, each in told.items()
    }


def confidences(
    calibration: Calibration,
    strategy: Strategy,
    encoder: str,
    reranker: str,
    signals: Mapping[str, Signals],
    second_phase: str = "",
    weight: float = 0.0,
) -> dict[str, float] | None:
    """The confidence of every paper that `features` knows, or None where nothing was calibrated for such an answer."""
    reranked = any(each.rerank is not None for each in signals.values())
    table = calibration.table(strategy, encoder, reranker if reranked else "", second_phase, weight)
    if table is None:
        return None
    if not table.second_phase_weight:  # the table was fitted on the reranker's own order
        signals = {paper_id: replace(each, joined=None) for paper_id, each in signals.items()}
    return {paper_id: table.confidence(values) for paper_id, values in features(signals).items()}


def _margins(scores: Mapping[str, float]) -> dict[str, float]:
    """Each score less the best other one; 0 for a single score."""
    best, *others = [*sorted(scores.values(), reverse=True), 0.0]
    second = others[0] if len(scores) > 1 else best
    return {paper_id: score - (second if score == best else best) for paper_id, score in scores.items()}


def _last(signals: Signals, odds: float) -> float:
    """The score that ranks the paper in the last stage."""
    if signals.rerank is None:
        return signals.retrieval
    return odds if signals.joined is None else signals.joined
