"""HAtten's encoder: words → paragraphs → one vector of a document or a query (hatten-scibert §4.1).

Two levels of the same parts: one transformer layer, then multi-head pooling. The first level reads the words of one
paragraph with their positions, the second the paragraphs of a document with learned embeddings of their types.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor, nn


class ParagraphType(IntEnum):
    """The fields of a document; a query is a citing paper's title and abstract with a context."""

    TITLE = 0
    ABSTRACT = 1
    CONTEXT = 2


@dataclass(frozen=True, slots=True)
class Paragraphs:
    """One field of several documents."""

    kind: ParagraphType
    words: Tensor
    """`[documents, words]`, 0 at the end; a row of zeros is a field that a document lacks."""


class MultiHeadPooling(nn.Module):
    """eq. 1 and 2: per head a weighted mean of value vectors, then ReLU and a linear layer."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        if size % heads:
            raise ValueError(f"{heads} heads cannot divide vectors of {size} numbers")
        self.heads = heads
        self.score = nn.Linear(size, heads)
        self.value = nn.Linear(size, size)
        self.out = nn.Linear(size, size)

    def forward(self, states: Tensor, absent: Tensor) -> Tensor:
        """`[rows, places, size]` and where no state is → `[rows, size]`."""
        scores = self.score(states).float().masked_fill(absent[..., None], float("-inf"))
        weights = torch.softmax(scores, dim=1)  # [rows, places, heads]
        values = self.value(states).unflatten(-1, (self.heads, -1))  # [rows, places, heads, size / heads]
        pooled = (weights[..., None] * values).sum(dim=1).flatten(1)
        out: Tensor = self.out(torch.relu(pooled))
        return out


class Level(nn.Module):
    """A transformer layer, then multi-head pooling."""

    def __init__(self, size: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(size, heads, inner, dropout, batch_first=True)
        self.pooling = MultiHeadPooling(size, heads)

    def forward(self, states: Tensor, absent: Tensor) -> Tensor:
        out: Tensor = self.pooling(self.layer(states, src_key_padding_mask=absent), absent)
        return out


class HAttenEncoder(nn.Module):
    """The siamese encoder of queries and documents."""

    words: Tensor
    positions: Tensor

    def __init__(self, words: Tensor, heads: int, inner: int, dropout: float, longest: int) -> None:
        """`words`: the vectors of all words, row 0 zero; they are not trained."""
        super().__init__()
        size = words.shape[1]
        self.register_buffer("words", words, persistent=False)
        self.register_buffer("positions", sinusoids(longest, size), persistent=False)
        self.paragraph = Level(size, heads, inner, dropout)
        self.types = nn.Embedding(len(ParagraphType), size)
        self.document = Level(size, heads, inner, dropout)

    def forward(self, fields: Sequence[Paragraphs]) -> Tensor:
        """One unit vector a document; every field has one row a document."""
        lacking = torch.stack([(field.words == 0).all(dim=1) for field in fields], dim=1)
        lacking[:, 0] &= ~lacking.all(dim=1)  # a document without any word is its empty first field
        encoded = torch.stack([self._paragraphs(field) for field in fields], dim=1)
        return nn.functional.normalize(self.document(encoded, lacking).float(), dim=-1)

    def _paragraphs(self, field: Paragraphs) -> Tensor:
        present = field.words != 0
        longest = max(1, int(present.sum(dim=1).max()))
        words, absent = field.words[:, :longest], ~present[:, :longest]
        absent[:, 0] = False  # an empty paragraph is read as one word of zeros; its document leaves it out
        states = self.words[words] + self.positions[:longest]
        kind: Tensor = self.types.weight[field.kind]
        out: Tensor = self.paragraph(states, absent) + kind
        return out


def sinusoids(longest: int, size: int) -> Tensor:
    """The positional encoding of Vaswani et al."""
    at = torch.arange(longest)[:, None]
    rates = torch.exp(torch.arange(0, size, 2) * (-math.log(10_000.0) / size))
    out = torch.zeros(longest, size)
    out[:, 0::2] = torch.sin(at * rates)
    out[:, 1::2] = torch.cos(at * rates)[:, : size // 2]
    return out
