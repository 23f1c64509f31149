"""An exported model as a starting point for training: the reverse of `export`.

The graphs hold every weight the torch model has, under names that `bert_graph` and `davinci_graph` derive from torch's.
Weights stored as int8 stay rounded: training continues from the served model, not from the one before rounding.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import numpy_helper

from citewell.lab.davinci.model import Reranker, Variant, blank_encoder
from citewell.lab.davinci.runs import RunFolder
from citewell.lab.davinci.settings import TrainSettings
from citewell.reranker.model_files import ENCODER_CONFIG, GRAPHS, TOKENIZER, RerankerUnusable, read_model_folder
from citewell.reranker.pairs import PairTokenizer, TokenBudget

Arrays = dict[str, NDArray[np.float32]]
_MATRIX, _BIAS = ".weight_t", ".bias_all"
_MERGED = {"query": ("query", "key", "value"), "key": ("key", "value")}
"""Attention layers that the graph computes as one product, by the name of the first."""


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """A folder that `citewell export davinci` wrote, read the way a run folder is."""

    path: Path

    @property
    def tokenizer_file(self) -> Path:
        """The tokeniser as Hugging Face stores it."""
        return read_model_folder(self.path).file(TOKENIZER)

    @property
    def encoder_config(self) -> dict[str, Any]:
        """The encoder's Hugging Face configuration."""
        file = self.path / ENCODER_CONFIG
        if not file.is_file():
            raise ValueError(f"{self.path} has no {file.name}: export the model again to be able to train it further")
        config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return config

    @property
    def settings(self) -> TrainSettings:
        """The recorded settings of pairs; the others have their defaults. The retrieving system is not recorded."""
        described = read_model_folder(self.path).description
        return TrainSettings(budget=described.budget, mentions=described.mentions, decay=described.decay)

    def tokenizer(self, budget: TokenBudget | None = None) -> PairTokenizer:
        """The tokeniser of pairs with the served budget, or with another."""
        return PairTokenizer.from_file(self.tokenizer_file, budget or self.settings.budget)

    def model(self, apart: Mapping[str, Any] | None = None) -> Reranker:
        """The model in torch, with one head: the exported one."""
        weights = exported_weights(self.path)
        size = len(weights["heads.davinci.text.0.bias"])
        config = {**self.encoder_config, **(apart or {})}
        model = Reranker(blank_encoder(config), {"davinci": Variant.DAVINCI}, size)
        model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
        return model.eval()


def starting_point(folder: Path) -> RunFolder | ExportedModel:
    """The run or the exported model in `folder`."""
    run = RunFolder(folder)
    if run.weights.is_file():
        return run
    try:
        read_model_folder(folder)
    except RerankerUnusable:
        raise ValueError(
            f"{folder} is neither a training run (no {run.weights.name}) nor written by `citewell export davinci`"
        ) from None
    return ExportedModel(folder)


def exported_weights(folder: Path) -> Arrays:
    """Every weight of the graphs, under its name in torch."""
    found: Arrays = {}
    model = read_model_folder(folder)
    for graph in GRAPHS:
        stored = {each.name: numpy_helper.to_array(each) for each in onnx.load(model.file(graph)).graph.initializer}
        for name, array in _restored(stored):
            found |= _split(name, array, model.description.hidden)
    # A run's head may have another name, such as "davinci+margin"; an exported model has only one head.
    return {_as_davinci(name): np.array(array, np.float32, order="C") for name, array in found.items()}


def _restored(stored: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, NDArray[Any]]]:
    """The weights, with int8 ones multiplied by their scales, without the graph's constants."""
    for name, array in stored.items():
        if not name.startswith(("encoder.", "heads.")) or name.endswith("_scale"):
            continue
        if not name.endswith("_int8"):
            yield name, array
            continue
        plain = name.removesuffix("_int8")
        scale = stored[f"{plain}_scale"]
        # Matrices have a scale per column, the word embeddings one per row.
        yield plain, array.astype(np.float32) * (scale if plain.endswith(_MATRIX) else scale[:, None])


def _split(name: str, array: NDArray[Any], hidden: int) -> Arrays:
    """The torch parameters that one weight of the graph holds."""
    for suffix, parameter in ((_MATRIX, "weight"), (_BIAS, "bias")):
        if name.endswith(suffix):
            parent, _, layer = name.removesuffix(suffix).rpartition(".")
            rows = array.T if suffix == _MATRIX else array
            if not parent.endswith("attention.self"):
                return {f"{parent}.{layer}.{parameter}": rows}
            # The last layer's query weight is separate, because it is computed for the first token only.
            parts = np.split(rows, len(rows) // hidden)
            return {f"{parent}.{part}.{parameter}": one for part, one in zip(_MERGED[layer], parts, strict=False)}
    return {name: array}


def _as_davinci(name: str) -> str:
    kind, _, rest = name.partition(".")
    return f"heads.davinci.{rest.partition('.')[2]}" if kind == "heads" else name
