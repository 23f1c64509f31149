"""Scores of whole candidate lists, in memory or cached in a folder, so that a stopped run resumes."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from citewell.inference.batches import token_batches
from citewell.inference.davinci_graph import as_float32, davinci_pairs, davinci_sides
from citewell.inference.pair_encoder import PairEncoder
from citewell.inference.sessions import Precision, Runtime, open_session
from citewell.lab.davinci.batches import Batch, PairBatches
from citewell.lab.davinci.lists import CandidateLists
from citewell.lab.davinci.model import Reranker
from citewell.lab.davinci.priors import Floats
from citewell.reranker.model_files import PAIRS, SIDES, read_model_folder

_TOKENS = 8192
"""Tokens per forward pass, padding included."""
_KEPT_BYTES = 2 << 30
"""Cache for the separate layers' output of candidates: lists of one split share many candidates."""
_BLOCK = 20
"""Queries computed between two writes to the folder."""


@dataclass(frozen=True, slots=True, eq=False)
class HeadScores:
    """A head's output for every pair, `[queries, k]` each. Past the end of a list `logit` is -inf, gates are NaN."""

    logit: Floats
    gate_text: Floats
    gate_score: Floats

    @property
    def arrays(self) -> tuple[Floats, Floats, Floats]:
        """The three, in the order of the fields."""
        return self.logit, self.gate_text, self.gate_score


def joined(scores: HeadScores, lists: CandidateLists, weight: float) -> HeadScores:
    """The scores that rank in the services: log-odds plus weighted scores of the second phase (the lists')."""
    return HeadScores(scores.logit + np.float32(weight) * lists.scores, scores.gate_text, scores.gate_score)


Encode = Callable[[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]], Floats]
"""`input_ids, attention_mask, token_type_ids` → e, `[pairs, d_enc]`."""


def torch_encode(model: Reranker, precision: str) -> Encode:
    """e as the model computes it in training, at "fp32" or "bf16"."""
    device = next(model.parameters()).device

    def encode(*arrays: NDArray[np.int64]) -> Floats:
        tensors = (torch.from_numpy(array).to(device) for array in arrays)
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            e: Floats = model.encode(*tensors).float().cpu().numpy()
        return e

    return encode


def served_encode(config: Mapping[str, Any], model: Reranker, precision: Precision, threads: int) -> Encode:
    """e as computed in serving, on OpenVINO: the last layer for the first token only, twice as fast as torch."""
    weights = as_float32({name: tensor.cpu().numpy() for name, tensor in model.state_dict().items()})
    with tempfile.TemporaryDirectory() as folder:
        sessions = []
        for number, write in enumerate((davinci_sides, davinci_pairs)):
            graph = Path(folder) / f"{number}.onnx"
            onnx.save(write(config, weights), graph)
            sessions.append(open_session(graph, Runtime.OPENVINO, precision, threads))
    return PairEncoder(*sessions, apart=config.get("apart_layers", 0) > 0, kept_bytes=_KEPT_BYTES).encode


def exported_encode(folder: Path, precision: Precision, threads: int) -> Encode:
    """e as an exported model computes it in serving, with its stored weights."""
    model = read_model_folder(folder)
    sides, pairs = (open_session(model.file(graph), Runtime.OPENVINO, precision, threads) for graph in (SIDES, PAIRS))
    apart = model.description.apart_layers > 0
    return PairEncoder(sides, pairs, apart=apart, kept_bytes=_KEPT_BYTES).encode


def score_lists(
    model: Reranker, pairs: PairBatches, encode: Encode, *, unanswerable: bool = False
) -> dict[str, HeadScores]:
    """Every head's scores of every pair of the lists that hold the cited paper, or of all lists.

    No reranker can place an absent paper. Unless `unanswerable`, such a list is not computed, which saves a third of
    the work: it keeps its order (equal logits), and its gates are NaN.
    """
    lists = pairs.lists
    found = {name: np.full((3, len(lists), lists.depth), np.nan, np.float32) for name in model.heads}
    answerable = (lists.gold_position < lists.depth) | unanswerable
    for values in found.values():
        values[0] = np.where(answerable[:, None], -np.inf, 0.0)
    model.eval()
    for row in np.flatnonzero(answerable).tolist():
        inside = np.flatnonzero(lists.papers[row] >= 0)
        outputs = _score_batch(model, pairs.of([row], [lists.papers[row][inside]]), encode)
        for name, output in outputs.items():
            found[name][:, row, inside] = output
    return {name: HeadScores(*values) for name, values in found.items()}


def score_cached(
    model: Reranker,
    pairs: PairBatches,
    encode: Encode,
    folder: Path,
    on_progress: Callable[[int], None] = lambda done: None,
    *,
    unanswerable: bool = False,
) -> dict[str, HeadScores]:
    """The same, block by block; scores of this model and these lists that `folder` holds are not computed again."""
    config: Any = model.encoder.config
    apart = getattr(config, "apart_layers", 0)  # the same weights give other scores with separate layers
    weights = hashlib.blake2b(f"apart={apart}".encode() if apart else b"", digest_size=16)
    weights.update(b"unanswerable" if unanswerable else b"")
    for name, tensor in model.state_dict().items():
        weights.update(name.encode() + tensor.cpu().numpy().tobytes())
    blocks = []
    for start in range(0, len(pairs.lists), _BLOCK):
        part = pairs.take(np.arange(start, min(start + _BLOCK, len(pairs.lists))))
        path = folder / f"{_digest(weights, part)}.npz"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_suffix(".part.npz")
            scores = score_lists(model, part, encode, unanswerable=unanswerable)
            np.savez(unfinished, allow_pickle=False, **{name: np.stack(each.arrays) for name, each in scores.items()})
            unfinished.replace(path)
        with np.load(path) as stored:
            blocks.append({name: stored[name] for name in stored.files})
        on_progress(start + len(part.lists))
    return {name: HeadScores(*np.concatenate([block[name] for block in blocks], axis=1)) for name in blocks[0]}


def _digest(weights: hashlib.blake2b, pairs: PairBatches) -> str:
    """Names the scores of these pairs by everything they depend on but the precision of `encode`."""
    digest = weights.copy()
    for array in (pairs.lists.queries, pairs.lists.papers, pairs.lists.scores):
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(pairs.identity.encode())
    return digest.hexdigest()


def _score_batch(model: Reranker, batch: Batch, encode: Encode) -> dict[str, Floats]:
    """`[3, pairs]` of each head; pairs of similar length are computed together."""
    tokens = batch.tokens
    lengths = tokens.attention_mask.sum(axis=1)
    device = next(model.parameters()).device
    found = {name: np.zeros((3, len(lengths)), np.float32) for name in model.heads}
    for chosen in token_batches(lengths, _TOKENS):
        cut = np.s_[chosen, : int(lengths[chosen].max())]
        e = encode(tokens.input_ids[cut], tokens.attention_mask[cut], tokens.token_type_ids[cut])
        with torch.inference_mode():
            outputs = model.judge(torch.from_numpy(e).to(device), torch.from_numpy(batch.priors[chosen]).to(device))
        for name, output in outputs.items():
            parts = (output.logit, output.gate_text, output.gate_score)
            found[name][:, chosen] = torch.stack(parts).cpu().numpy()
    return found
