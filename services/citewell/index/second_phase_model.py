"""The model of the second phase: a network with one hidden layer, read from a file, and why it scores a paper so."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from citewell.index.second_phase import FEATURES, Candidates, Numbers, features, standardised
from citewell.runtime.settings import UnknownSetting
from citewell.scholarly.second_phase import SecondPhaseQuery

VERSION = 1
PACKAGED = Path(__file__).parent / "second_phase.json"
REST = "several of these together"
"""The share that belongs to no feature: the constants of the hidden units that are active."""


class BadModel(ValueError):
    """The file cannot be used; the message says why."""


@dataclass(frozen=True, eq=False)
class SecondPhaseModel:
    """score = direct · x + out · relu(hidden · x + bias), for standardised features x."""

    hash: str
    names: tuple[str, ...]
    direct: Numbers
    """[features]."""
    hidden: Numbers
    """[units, features]."""
    bias: Numbers
    out: Numbers
    """[units]."""

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """The groups of features that a score is explained by."""
        return (*dict.fromkeys(FEATURES[name] for name in self.names), REST)

    def shares(self, query: SecondPhaseQuery, mean_length: float, candidates: Candidates) -> Numbers:
        """[candidates, groups]: what each group of features adds to a candidate's score, which is the sum of a row.

        The network is linear as long as the same hidden units are active, so the shares are exact.
        """
        x = standardised(features(query, mean_length, candidates), self.names)
        active = np.where(x @ self.hidden.T + self.bias > 0, self.out, 0.0)
        shares: Numbers = (x * (self.direct + active @ self.hidden)) @ self._membership
        shares[:, -1] = active @ self.bias
        return shares

    @cached_property
    def _membership(self) -> Numbers:
        """[features, groups]: 1 where the feature belongs to the group."""
        return np.array([[float(FEATURES[name] == group) for group in self.groups] for name in self.names])


@dataclass(frozen=True, slots=True, eq=False)
class SecondPhase:
    """A model, and a query for it."""

    model: SecondPhaseModel
    query: SecondPhaseQuery

    def ranked(self, mean_length: float, candidates: Candidates, keys: Sequence[str], limit: int) -> list[SecondScore]:
        """The first `limit` in the new order, ties by key; `candidates` are in the order of the first phase."""
        shares = self.model.shares(self.query, mean_length, candidates)
        order = sorted(zip((-shares.sum(axis=1)).tolist(), keys, range(len(keys)), strict=True))[:limit]
        return [SecondScore(-negative, at + 1, shares[at]) for negative, _, at in order]


@dataclass(frozen=True, slots=True, eq=False)
class SecondScore:
    """A candidate's score, its rank in the first phase, from 1, and the shares of its score."""

    score: float
    first_rank: int
    shares: Numbers


def packaged_model() -> SecondPhaseModel:
    """The model in the package."""
    return read_model(PACKAGED.read_text("utf-8"))


def configured_model(setting: str) -> SecondPhaseModel | None:
    """The model that the setting names, or UnknownSetting."""
    if setting == "none":
        return None
    path = PACKAGED if setting == "packaged" else Path(setting)
    try:
        return read_model(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UnknownSetting(f"setting CITEWELL_INDEX__SECOND_PHASE is {setting!r}: {error}") from None


def read_model(text: str) -> SecondPhaseModel:
    """The model in a file that `train second-phase` wrote, or BadModel."""
    try:
        told: Any = json.loads(text)
    except ValueError as error:
        raise BadModel(f"it is no JSON: {error}") from None
    if not isinstance(told, Mapping) or told.get("version") != VERSION:
        raise BadModel(f'it must be an object with "version": {VERSION}')
    try:
        names = tuple(map(str, told["features"]))
        arrays = {name: np.array(told[name], np.float64) for name in ("direct", "hidden", "bias", "out")}
    except (KeyError, TypeError, ValueError) as error:
        raise BadModel(f"{type(error).__name__}: {error}") from None
    if unknown := [name for name in names if name not in FEATURES]:
        raise BadModel(f"features {unknown} are unknown; known are {', '.join(FEATURES)}")
    units = len(arrays["bias"])
    shapes = {"direct": (len(names),), "hidden": (units, len(names)), "bias": (units,), "out": (units,)}
    for name, shape in shapes.items():
        if arrays[name].shape != shape or not np.isfinite(arrays[name]).all():
            raise BadModel(f"{name} must be finite numbers of shape {list(shape)}, not {list(arrays[name].shape)}")
    digest = hashlib.sha256(b"".join([" ".join(names).encode(), *(arrays[name].tobytes() for name in shapes)]))
    return SecondPhaseModel(digest.hexdigest()[:16], names, **arrays)


def model_text(names: tuple[str, ...], arrays: Mapping[str, Numbers], card: Mapping[str, Any]) -> str:
    """The file of a model; `card` tells people how it was made."""
    lists = {name: np.round(values, 6).tolist() for name, values in arrays.items()}
    return json.dumps({"version": VERSION, "card": dict(card), "features": list(names), **lists}, indent=1) + "\n"
