"""Invented models, small enough for a unit test: a word-piece vocabulary and BERT weights drawn at random."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from citewell.inference.davinci_graph import davinci_head, davinci_pairs, davinci_sides
from citewell.reranker.model_files import GRAPHS, ModelDescription
from citewell.reranker.pairs import TokenBudget

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
LETTERS = [chr(c) for c in range(ord("a"), ord("z") + 1)] + list("0123456789.,;:!?-()[]'é")
CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}
RERANKER_CONFIG = CONFIG | {"apart_layers": 1, "side_positions": (24, 30)}


def tiny_tokenizer() -> Tokenizer:
    """A word-piece tokeniser that knows the two markers and spells everything else."""
    words = [*SPECIAL, "target", "other", "##cit", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def tiny_bert_weights(
    vocabulary: int, config: dict[str, Any] = CONFIG, seed: int = 0, prefix: str = ""
) -> dict[str, NDArray[np.float32]]:
    """Weights under the names Hugging Face gives them."""
    rng = np.random.default_rng(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (vocabulary, hidden),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], hidden),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], hidden),
        "embeddings.LayerNorm.weight": (hidden,),
        "embeddings.LayerNorm.bias": (hidden,),
    }
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        for part, out, size in [
            ("attention.self.query", hidden, hidden),
            ("attention.self.key", hidden, hidden),
            ("attention.self.value", hidden, hidden),
            ("attention.output.dense", hidden, hidden),
            ("intermediate.dense", inner, hidden),
            ("output.dense", hidden, inner),
        ]:
            shapes |= {f"{layer}.{part}.weight": (out, size), f"{layer}.{part}.bias": (out,)}
        for part in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{layer}.{part}.weight": (hidden,), f"{layer}.{part}.bias": (hidden,)}
    return {
        f"{prefix}{name}": (rng.normal(0, 0.4, shape) + name.endswith("LayerNorm.weight")).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_tiny_davinci(
    folder: Path,
    *,
    seed: int = 0,
    budget: TokenBudget | None = None,
    mentions: int = 0,
    config: dict[str, Any] = RERANKER_CONFIG,
) -> Path:
    """A DAVINCI model folder, as `citewell export davinci` writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_tokenizer()
    for graph, name in zip(tiny_davinci_graphs(seed, config), GRAPHS, strict=True):
        onnx.save(graph, folder / name)
    tokenizer.save(str(folder / "tokenizer.json"))
    budget = budget or TokenBudget(
        context=16, query_title=4, query_abstract=4, candidate=20, window=config["max_position_embeddings"]
    )
    apart = config.get("apart_layers", 0)
    described = ModelDescription("tiny", budget, mentions, 0.95, config["hidden_size"], "fp32", (2020, 12, 31), apart)
    described.write(folder)
    return folder


def tiny_davinci_graphs(seed: int = 0, config: dict[str, Any] = RERANKER_CONFIG) -> tuple[onnx.ModelProto, ...]:
    """The parts of a small DAVINCI."""
    weights = tiny_davinci_weights(tiny_tokenizer().get_vocab_size(), seed=seed, config=config)
    return davinci_sides(config, weights), davinci_pairs(config, weights), davinci_head(weights)


def tiny_davinci_weights(
    vocabulary: int, *, size: int = 8, seed: int = 0, config: dict[str, Any] = RERANKER_CONFIG
) -> dict[str, NDArray[np.float32]]:
    """Weights of encoder and head under the names training gives them."""
    rng = np.random.default_rng(seed + 1)
    hidden = config["hidden_size"]
    weights = tiny_bert_weights(vocabulary, config, seed, "encoder.")
    for name, inputs, outputs in [
        ("text", hidden, size),
        ("score", 1, size),
        ("gate", hidden + 1, 2 * size),
        ("out", 2 * size, 1),
    ]:
        for layer, (rows, columns) in {"0": (size, inputs), "2": (outputs, size)}.items():
            weights[f"heads.davinci.{name}.{layer}.weight"] = rng.normal(0, 0.4, (rows, columns)).astype(np.float32)
            weights[f"heads.davinci.{name}.{layer}.bias"] = rng.normal(0, 0.4, rows).astype(np.float32)
    return weights


def write_tiny_encoder(
    folder: Path,
    *,
    pooling: str | None = "mean",
    normalise: bool = True,
    max_tokens: int = 32,
    config: dict[str, Any] = CONFIG,
) -> Path:
    """A model folder as sentence-transformers writes it; with `pooling` None, as plain transformers does."""

    def write(name: str, content: Any) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), "utf-8")

    tokenizer = tiny_tokenizer()
    write("config.json", {**config, "vocab_size": tokenizer.get_vocab_size()})
    write("tokenizer_config.json", {"sep_token": "[SEP]", "pad_token": "[PAD]", "model_max_length": 10**30})
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file(tiny_bert_weights(tokenizer.get_vocab_size(), config), folder / "model.safetensors")
    if pooling:
        modules = ["", "1_Pooling"] + ["2_Normalize"] * normalise
        kinds = ["Transformer", "Pooling", "Normalize"]
        types = [f"sentence_transformers.models.{kind}" for kind in kinds]
        write("modules.json", [{"path": path, "type": kind} for path, kind in zip(modules, types, strict=False)])
        write(
            "1_Pooling/config.json",
            {f"pooling_mode_{way}_token{'s' * (way != 'cls')}": way == pooling for way in ("cls", "mean", "max")},
        )
        write("sentence_bert_config.json", {"max_seq_length": max_tokens})
    return folder
