"""The two networks of Citeomatic and their loss."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from citewell.lab.dataset import Rows
from citewell.lab.rivals.citeomatic.texts import FIELDS, METADATA, Texts, Types

Random = np.random.Generator | None
MARGINS = (0.3, 0.2, 0.1)
"""α of random, nearest-neighbour and citation-of-citation negatives (appendix B)."""
HIDDEN = 20
"""Units of each of the two hidden layers of FeedForward; the paper does not state them."""


class WordSums(nn.Module):
    """eq. 1: the sum of a field's words, each a learned magnitude times a learned direction of length one."""

    def __init__(self, words: int, dimension: int) -> None:
        super().__init__()
        self.magnitude = nn.Embedding(words, 1, sparse=True)
        self.direction = nn.Embedding(words, dimension, sparse=True)
        nn.init.ones_(self.magnitude.weight)
        nn.init.normal_(self.direction.weight)

    def forward(self, field: Types, papers: Rows, dropout: float = 0.0, rng: Random = None) -> Tensor:
        """[papers, dimension]; `dropout` leaves out that share of the words."""
        tokens, starts = field.of(papers)
        if dropout and rng is not None:
            kept = rng.random(len(tokens)) >= dropout
            before = np.concatenate([[0], np.cumsum(kept)])
            tokens, starts = tokens[kept], before[starts]
        if not len(tokens):
            return torch.zeros(len(papers), self.direction.embedding_dim)
        distinct, places = np.unique(tokens, return_inverse=True)
        named = torch.from_numpy(distinct)
        vectors = self.magnitude(named) * functional.normalize(self.direction(named), dim=1)
        summed: Tensor = functional.embedding_bag(
            torch.from_numpy(places.astype(np.int64)), vectors, torch.from_numpy(starts.astype(np.int64)), mode="sum"
        )
        return summed


class SelectNetwork(nn.Module):
    """NNSelect: title and abstract, each at length one, weighed by two scalars."""

    def __init__(self, words: int, dimension: int) -> None:
        super().__init__()
        self.words = WordSums(words, dimension)
        self.weights = nn.Parameter(torch.ones(len(FIELDS)))

    def forward(self, texts: Texts, papers: Rows, dropout: float = 0.0, rng: Random = None) -> Tensor:
        """[papers, dimension] at length one, so that a dot product is s(d, d')."""
        fields = [functional.normalize(self.words(texts.fields[name], papers, dropout, rng), dim=1) for name in FIELDS]
        together = sum((weight * field for weight, field in zip(self.weights, fields, strict=True)), torch.zeros(()))
        return functional.normalize(together, dim=1)


class RankNetwork(nn.Module):
    """NNRank: cosines of the fields, summed weights of shared words, NNSelect's cosine and log of the in-citations."""

    def __init__(self, texts: Texts, dimension: int, metadata_dimension: int, metadata: tuple[str, ...]) -> None:
        super().__init__()
        words = len(texts.vocabulary)
        self.words = WordSums(words, dimension)
        self.named = nn.ModuleDict(
            {name: WordSums(max(1, texts.fields[name].size), metadata_dimension) for name in metadata}
        )
        self.shared = nn.Embedding(words, 1, sparse=True)
        nn.init.zeros_(self.shared.weight)
        features = len(FIELDS) + len(metadata) + 1 + len(FIELDS) + 1
        self.forward_layers = nn.Sequential(
            nn.Linear(features, HIDDEN), nn.ELU(), nn.Linear(HIDDEN, HIDDEN), nn.ELU(), nn.Linear(HIDDEN, 1)
        )

    def vectors(self, texts: Texts, papers: Rows, dropout: float = 0.0, rng: Random = None) -> dict[str, Tensor]:
        """f of every field, at length one."""
        found = {name: self.words(texts.fields[name], papers, dropout, rng) for name in FIELDS}
        found |= {name: module(texts.fields[name], papers) for name, module in self.named.items()}
        return {name: functional.normalize(each, dim=1) for name, each in found.items()}

    def intersections(self, texts: Texts, first: Rows, second: Rows) -> list[Tensor]:
        """For each field, the summed weights of the word types that the two papers of each pair share."""
        sums = []
        for name in FIELDS:
            pairs, tokens = shared_tokens(texts.fields[name], first, second)
            weights = self.shared(torch.from_numpy(tokens))[:, 0]
            sums.append(torch.zeros(len(first)).index_add(0, torch.from_numpy(pairs), weights))
        return sums

    def logits(self, cosines: Mapping[str, Tensor], shared: list[Tensor], select: Tensor, citations: Tensor) -> Tensor:
        """eq. 3 before the sigmoid, for pairs of papers."""
        columns = [*cosines.values(), select, *shared, torch.log1p(citations)]
        found: Tensor = self.forward_layers(torch.stack(columns, dim=1))[:, 0]
        return found


def shared_tokens(field: Types, first: Rows, second: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(number of the pair, token) of every token that the papers of a pair share."""
    keys = []
    for papers in (first, second):
        tokens, starts = field.of(papers)
        lengths = np.diff(np.append(starts, len(tokens)))
        keys.append(np.repeat(np.arange(len(papers)), lengths) * max(1, field.size) + tokens)
    both = np.intersect1d(keys[0], keys[1], assume_unique=True)
    return both // max(1, field.size), both % max(1, field.size)


def boost(in_citations: Tensor) -> Tensor:
    """B(d) of appendix B: σ(in-citations / 100) / 50."""
    return torch.sigmoid(in_citations / 100) / 50


def triplet_loss(
    right: Tensor, wrong: Tensor, margins: Tensor, right_citations: Tensor, wrong_citations: Tensor
) -> Tensor:
    """The mean of max(0, γα(d⁻) + s(q, d⁻) + B(d⁻) − s(q, d⁺) − B(d⁺)); `margins` is γα."""
    gap = margins + wrong + boost(wrong_citations) - right - boost(right_citations)
    return gap.clamp(min=0).mean()


def parameters(network: nn.Module) -> int:
    """How many numbers a network learns."""
    return sum(each.numel() for each in network.parameters())


def metadata_fields(texts: Texts, wanted: bool) -> tuple[str, ...]:
    """The metadata that the data set has, if it is wanted."""
    return tuple(name for name in METADATA if texts.fields[name].size) if wanted else ()
