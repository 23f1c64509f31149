"""A generated data set, tokeniser and encoder, small enough to train in seconds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import BertConfig, BertModel

from citewell.lab.dataset import Dataset, read_dataset
from citewell.lab.davinci.lists import CandidateLists
from citewell.lab.davinci.settings import TrainSettings
from citewell.reranker.pairs import TokenBudget

TOPICS = 12
WORDS = [f"topic{i}" for i in range(TOPICS)] + [
    "we",
    "study",
    "as",
    "in",
    "shown",
    "by",
    "method",
    "of",
    ".",
    "targetcit",
]


def tokenizer() -> Tokenizer:
    """Whole words and single letters, so that any text has tokens."""
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + [str(d) for d in range(10)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, *letters, *(f"##{letter}" for letter in letters)]
    words = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    words.normalizer = normalizers.BertNormalizer(lowercase=True)
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.decoder = decoders.WordPiece()
    return words


def write_encoder(folder: Path, layers: int = 2) -> Path:
    """A small random BERT with its tokeniser."""
    import torch

    torch.manual_seed(5)
    words = tokenizer()
    config = BertConfig(
        vocab_size=words.get_vocab_size(),
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    words.save(str(folder / "tokenizer.json"))
    return folder


def write_dataset(folder: Path) -> Dataset:
    """Forty-eight older papers on twelve topics; young papers cite those of the topic their context names."""
    folder.mkdir(parents=True, exist_ok=True)
    older = [f"old{i}" for i in range(4 * TOPICS)]
    papers = [
        {
            "id": name,
            "title": f"method {i} of topic{i % TOPICS}",
            "abstract": f"we study topic{i % TOPICS} .",
            "year": 2000,
        }
        for i, name in enumerate(older)
    ]
    citing = {"train": 12, "validation": 3, "test": 3}
    contexts, splits = [], {}
    for split, count in citing.items():
        splits[split] = [f"{split}{j}" for j in range(count)]
        for j, name in enumerate(splits[split]):
            papers.append({"id": name, "title": f"we study topic{j % TOPICS}", "abstract": "", "year": 2010})
            for n in range(4):
                cited = (7 * j + 5 * n) % len(older)
                text = f"as shown in topic{cited % TOPICS} by TARGETCIT we study method {n} ."
                row = {"id": f"{name}-{n}", "citing_id": name, "cited_id": older[cited], "text": text, "year": 2010}
                contexts.append(row)
    (folder / "papers.jsonl").write_text("".join(json.dumps(p) + "\n" for p in papers), encoding="utf-8")
    (folder / "contexts.jsonl").write_text("".join(json.dumps(c) + "\n" for c in contexts), encoding="utf-8")
    (folder / "splits.json").write_text(json.dumps(splits), encoding="utf-8")
    return read_dataset(folder)


def lists_of(data: Dataset, split: str, depth: int = 12, seed: int = 3) -> CandidateLists:
    """Random lists of older papers. In most, the cited paper is first; in the last ones it is at a random rank."""
    rng = np.random.default_rng(seed)
    queries = data.contexts.of_split(split).astype(np.int32)
    gold = data.contexts.cited[queries]
    papers = np.stack([rng.permutation(4 * TOPICS)[:depth] for _ in queries]).astype(np.int32)
    for row in range(len(queries) - len(queries) // 8):
        papers[row] = np.where(papers[row] == gold[row], papers[row, 0], papers[row])
        papers[row, rng.integers(3)] = gold[row]
    scores = -np.sort(-rng.random((len(queries), depth)).astype(np.float32), axis=1)
    return CandidateLists(queries, papers, scores, gold, np.full(len(queries), 0.01, np.float32))


def settings(encoder: Path, **changes: object) -> TrainSettings:
    """A short run of the tiny encoder."""
    small = TrainSettings(
        encoder=str(encoder),
        head_size=8,
        budget=TokenBudget(context=12, query_title=6, candidate=10, window=60),
        steps=8,
        queries_per_batch=4,
        validate_every=2,
        learning_rate=1e-3,
        precision="fp32",
    )
    import dataclasses

    return dataclasses.replace(small, **changes)  # type: ignore[arg-type]
