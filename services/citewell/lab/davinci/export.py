"""Exports a trained DAVINCI to files that are served without torch: graphs, tokeniser, description.

run folder ──▶ model folder (reranker/model_files.py)      loaded by the reranker in its own process
           └─▶ Triton model repository                     config.pbtxt and one numbered version of the joined graph
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from safetensors.numpy import load_file

from citewell.inference.davinci_graph import as_float32, davinci_head, davinci_pairs, davinci_sides, joined
from citewell.inference.quantization import with_int8_weights
from citewell.lab.davinci.exported import ExportedModel, exported_weights
from citewell.lab.davinci.model import Variant, parse_heads
from citewell.lab.davinci.runs import RunFolder
from citewell.reranker.model_files import (
    ENCODER_CONFIG,
    GRAPHS,
    SHARED,
    TOKENIZER,
    ModelDescription,
    read_model_folder,
)
from citewell.reranker.pairs import TokenBudget


class Storage(StrEnum):
    """The type of the encoder's stored weights; the head's are always fp32."""

    FP32 = "fp32"
    FP16 = "fp16"
    """Also computes in fp16: for GPUs."""
    INT8 = "int8"
    """One scale per channel; a quarter of the size of fp32."""


@dataclass(frozen=True, slots=True)
class Graphs:
    """A model as its graphs."""

    sides: onnx.ModelProto
    pairs: onnx.ModelProto
    head: onnx.ModelProto

    @property
    def parts(self) -> tuple[onnx.ModelProto, ...]:
        """The graphs in the order in which they are computed."""
        return self.sides, self.pairs, self.head


def build_graphs(run: RunFolder, storage: Storage) -> Graphs:
    """The graphs of a run's best weights."""
    weights = as_float32(load_file(run.weights))
    settings = run.settings
    name = settings.heads[0]
    variant, _ = parse_heads(settings.heads, settings.loss)[name]
    if variant is not Variant.DAVINCI:
        raise ValueError(f"the run's first head is {name!r}; only the full model (davinci) can be exported")
    store = {Storage.FP32: lambda graph: graph, Storage.FP16: _in_fp16, Storage.INT8: with_int8_weights}[storage]
    sides, pairs = (store(write(run.encoder_config, weights)) for write in (davinci_sides, davinci_pairs))
    return Graphs(sides, pairs, davinci_head(weights, f"heads.{name}."))


def _in_fp16(model: onnx.ModelProto) -> onnx.ModelProto:
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    converted = OnnxModel(convert_float_to_float16(model, keep_io_types=True))
    converted.topological_sort()  # the conversion puts the casts of inputs last, which the checker refuses
    sorted_model: onnx.ModelProto = converted.model
    return sorted_model


def export_folder(
    run: RunFolder,
    out: Path,
    storage: Storage,
    name: str,
    cut_off: tuple[int, int, int],
    budget: TokenBudget,
    share_with: Path | None = None,
) -> None:
    """Writes the model folder of the reranker; `budget` are the token budgets of its pairs.

    `share_with`: a model folder beside `out` whose sides.onnx and tokeniser are also this model's.
    """
    if share_with:
        _check_shared(run, out, storage, share_with)
    graphs = build_graphs(run, storage)
    out.mkdir(parents=True, exist_ok=True)
    for graph, file in zip(graphs.parts, GRAPHS, strict=True):
        if not (share_with and file in SHARED):
            onnx.save(graph, out / file)
    if not share_with:
        shutil.copyfile(run.path / TOKENIZER, out / TOKENIZER)
    # The encoder's source is a path of the training machine, so it is removed.
    config = {name: value for name, value in run.encoder_config.items() if name != "_name_or_path"}
    (out / ENCODER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    settings = run.settings
    hidden = int(run.encoder_config["hidden_size"])
    mentions = settings.mentions if budget.mentions else 0
    apart = run.encoder_config.get("apart_layers", 0)
    shares = share_with.name if share_with else ""
    ModelDescription(name, budget, mentions, settings.decay, hidden, storage.value, cut_off, apart, shares).write(out)


def _check_shared(run: RunFolder, out: Path, storage: Storage, other: Path) -> None:
    if other.resolve().parent != out.resolve().parent:
        raise ValueError(f"{other} is not beside {out}: models that share files lie in one folder")
    described = read_model_folder(other).description
    if described.precision != storage.value:
        raise ValueError(f"{other} is stored as {described.precision}, not as {storage.value}")
    if (run.path / TOKENIZER).read_bytes() != ExportedModel(other).tokenizer_file.read_bytes():
        raise ValueError(f"{other} has another tokeniser")
    apart = [f"encoder.encoder.layer.{layer}." for layer in range(run.encoder_config.get("apart_layers", 0))]
    weights, others = load_file(run.weights), exported_weights(other)
    for weight in weights:
        if weight.startswith(("encoder.embeddings.", *apart)) and not np.array_equal(weights[weight], others[weight]):
            raise ValueError(f"{weight} is not that of {other}: train with start_from {other} and freeze_sides")


def export_triton_version(run: RunFolder, repository: Path, model: str, version: int, storage: Storage) -> Path:
    """Writes one version of the joined graph into a Triton model repository whose config.pbtxt is there already."""
    graphs = build_graphs(run, storage)
    folder = repository / model / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(joined(*graphs.parts), folder / "model.onnx")
    return folder


def parity(run: RunFolder, graphs: Graphs, lengths: tuple[int, ...] = (16, 48, 120)) -> float:
    """The largest difference from torch in logits and gates, over pairs of random tokens and all priors in use."""
    import onnxruntime
    import torch

    model = run.model()
    rng = np.random.default_rng(0)
    session = onnxruntime.InferenceSession(joined(*graphs.parts).SerializeToString())
    worst = 0.0
    for length in (min(length, run.encoder_config["max_position_embeddings"]) for length in lengths):
        ids = rng.integers(4, run.encoder_config["vocab_size"], (8, length))
        mask = (np.arange(length) < rng.integers(length // 2, length + 1, (8, 1))).astype(np.int64)
        types = (np.arange(length) >= length // 2).astype(np.int64) * mask
        priors = np.power(run.settings.decay, rng.integers(1, 301, 8)).astype(np.float32)
        feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types, "prior": priors[:, None]}
        (scores,) = session.run(None, feed)
        with torch.inference_mode():
            tensors = (torch.from_numpy(array) for array in (ids, mask, types))
            output = next(iter(model(*tensors, torch.from_numpy(np.repeat(priors[:, None], 3, 1))).values()))
        expected: NDArray[np.float32] = torch.stack([output.logit, output.gate_text, output.gate_score], 1).numpy()
        worst = max(worst, float(np.abs(scores - expected).max()))
    return worst
