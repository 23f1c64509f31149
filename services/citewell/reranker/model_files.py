"""A DAVINCI model folder as it is served: three graphs, a tokeniser, and how pairs were cut in training.

sides.onnx  pairs.onnx  head.onnx  tokenizer.json  davinci.json     written by `citewell export davinci`

config.json, the encoder's configuration, stands beside them for those who train the model further; serving does not
read it. Models that differ only behind the first graph share sides.onnx and tokenizer.json (`shares_with`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from citewell.reranker.pairs import TokenBudget

SIDES, PAIRS, HEAD = GRAPHS = "sides.onnx", "pairs.onnx", "head.onnx"
TOKENIZER, DESCRIPTION = "tokenizer.json", "davinci.json"
SHARED = SIDES, TOKENIZER
ENCODER_CONFIG = "config.json"


class RerankerUnusable(ValueError):
    """A model folder cannot be served; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What a folder says about its model."""

    name: str
    budget: TokenBudget
    mentions: int
    """How many citing contexts share the budget's `mentions` tokens."""
    decay: float
    """λ of eq. 6."""
    hidden: int
    precision: str
    """How the weights are stored."""
    training_cut_off: tuple[int, int, int]
    """The last day its training data may know of: year, month, day."""
    apart_layers: int = 0
    """The first layers, which read query and candidate apart."""
    shares_with: str = ""
    """Name of the folder beside this one whose sides.onnx and tokenizer.json are also this model's."""

    def write(self, folder: Path) -> None:
        """Writes davinci.json."""
        told = asdict(self)
        if not self.shares_with:
            del told["shares_with"]
        (folder / DESCRIPTION).write_text(json.dumps(told, indent=2) + "\n", "utf-8")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model folder, read."""

    path: Path
    description: ModelDescription
    hash: str
    """Over the graphs, the tokeniser and the description."""

    def file(self, name: str) -> Path:
        """Where one of its files lies: in the folder itself, or in the one it shares with."""
        return _file(self.path, name, self.description)


def read_model_folder(path: Path) -> ModelFolder:
    """Reads a folder, or raises RerankerUnusable naming the file at fault."""
    description = _read_description(path)
    digest = hashlib.sha256()
    for name in (*GRAPHS, TOKENIZER, DESCRIPTION):
        with _file(path, name, description).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return ModelFolder(path, description, digest.hexdigest()[:16])


def _read_description(path: Path) -> ModelDescription:
    try:
        stored: dict[str, Any] = json.loads((path / DESCRIPTION).read_text("utf-8"))
        budget, cut_off = TokenBudget(**stored.pop("budget")), tuple(stored.pop("training_cut_off"))
        return ModelDescription(**stored, budget=budget, training_cut_off=cut_off)
    except OSError:
        raise _lacking(path, DESCRIPTION) from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RerankerUnusable(f"{path / DESCRIPTION} cannot be read: {error}") from None


def _file(path: Path, name: str, description: ModelDescription) -> Path:
    shared = description.shares_with and name in SHARED
    found = path.parent / description.shares_with / name if shared else path / name
    if not found.is_file():
        raise _lacking(found.parent, name)
    return found


def _lacking(path: Path, name: str) -> RerankerUnusable:
    return RerankerUnusable(f"{path} has no {name}: write the folder with `citewell export davinci`")
