"""The profile algebra: exact sums of citations, and eq. 3–5 over them.

Sums are integers. A vector is rounded once to fixed point (`to_fixed`), and all additions after that are exact. So a
sum does not depend on the order of the citations, and removing a citation restores the earlier sum bit for bit. α, β, γ
and δ are applied at projection or query time, so changing them needs no encoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
Fixed = NDArray[np.int64]

FRACTION_BITS = 24
"""Binary digits after the point. For components of a unit vector this is as precise as float32."""
LIMIT = 2.0**7
"""Components must be smaller, so that a stored vector fits 32-bit integers. Sums are 64-bit."""
MAX_WEIGHT = 1e6
"""Largest α, β, γ or δ: what is multiplied by it still has a length in float32."""


@dataclass(frozen=True, slots=True)
class ProfileWeights:
    """α and β of eq. 3: the weights of the citing contexts and of the citing papers' contents in a profile."""

    alpha: float
    beta: float
    shrinkage: float = 0.0
    """κ: sums over citing papers are divided by |N_in| + κ instead of |N_in|, so that few citations weigh less. eq. 3
    has κ = 0."""


@dataclass(frozen=True, slots=True)
class QueryWeights:
    """γ and δ of eq. 4: the weights of the citation context and of the draft's title and abstract. Only γ/δ matters."""

    gamma: float
    delta: float


CHOSEN_PROFILE = ProfileWeights(alpha=2.0, beta=0.5)
CHOSEN_QUERY = QueryWeights(gamma=0.6, delta=0.4)
"""The default of the services and the lab, chosen on validation data; see `citewell.lab.chosen`."""


def to_fixed(vectors: NDArray[Any]) -> Fixed:
    """The vectors rounded to fixed point; raises ValueError where a component is not finite or too large to store."""
    wide = np.asarray(vectors, dtype=np.float64)
    if not np.all(np.abs(wide) < LIMIT):  # NaN compares false as well
        raise ValueError(f"vector components must be finite and smaller than {LIMIT:g} in size")
    return np.rint(np.ldexp(wide, FRACTION_BITS)).astype(np.int64)


def from_fixed(fixed: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """The float64 value of fixed-point numbers."""
    return np.ldexp(fixed.astype(np.float64), -FRACTION_BITS)


def pair_mean(contexts: Fixed) -> Fixed:
    """s_ji of eq. 3: the mean of the context vectors [m, d] in which j cites i, rounded half up."""
    count = len(contexts)
    if count == 0:
        raise ValueError("a citing pair needs at least one context")
    mean: Fixed = np.floor_divide(2 * contexts.sum(axis=0, dtype=np.int64) + count, 2 * count)
    return mean


@dataclass(frozen=True, slots=True, eq=False)
class ProfileSums:
    """Σ_j s_ji, Σ_j v_j and |N_in(i)| of one paper ([d], [d], []) or of a stack of papers ([n, d], [n, d], [n])."""

    contexts: Fixed
    contents: Fixed
    count: NDArray[np.int64]

    @classmethod
    def zero(cls, dimension: int, papers: int | None = None) -> ProfileSums:
        """The sums of papers without citations."""
        shape = () if papers is None else (papers,)
        return cls(
            np.zeros((*shape, dimension), np.int64), np.zeros((*shape, dimension), np.int64), np.zeros(shape, np.int64)
        )

    def __add__(self, other: ProfileSums) -> ProfileSums:
        return ProfileSums(self.contexts + other.contexts, self.contents + other.contents, self.count + other.count)

    def __sub__(self, other: ProfileSums) -> ProfileSums:
        """These sums without the citations in `other`. Leave-one-paper-out evaluation uses this; it is exact."""
        return ProfileSums(self.contexts - other.contexts, self.contents - other.contents, self.count - other.count)

    def __getitem__(self, papers: Any) -> ProfileSums:
        """The sums of the selected papers of a stack."""
        return ProfileSums(self.contexts[papers], self.contents[papers], self.count[papers])


def sum_citations(cited: NDArray[np.integer[Any]], contexts: Fixed, contents: Fixed, papers: int) -> ProfileSums:
    """The sums of `papers` papers. Each input row is one (citing, cited) pair: cited index, s_ji and v_j."""
    sums = ProfileSums.zero(contexts.shape[-1], papers)
    np.add.at(sums.contexts, cited, contexts)
    np.add.at(sums.contents, cited, contents)
    np.add.at(sums.count, cited, 1)
    return sums


def profile(content: NDArray[Any], sums: ProfileSums, weights: ProfileWeights) -> Vectors:
    """v̂_i of eq. 3, for one paper or a stack. A paper without citations has its content as its profile."""
    said = weights.alpha * from_fixed(sums.contexts) + weights.beta * from_fixed(sums.contents)
    voices = np.maximum(sums.count + weights.shrinkage, 1.0)
    vector: Vectors = (content + said / voices[..., None]).astype(np.float32)
    return vector


def query_vector(context: NDArray[Any] | None, content: NDArray[Any] | None, weights: QueryWeights) -> Vectors:
    """v_q of eq. 4. If the context is missing, or title and abstract are, v_q is the other part alone."""
    if context is None and content is None:
        raise ValueError("a query needs a context or a title and abstract")
    if context is None:
        return np.asarray(content, dtype=np.float32)
    if content is None:
        return np.asarray(context, dtype=np.float32)
    vector: Vectors = (weights.gamma * np.asarray(context) + weights.delta * np.asarray(content)).astype(np.float32)
    return vector


def normalised(vectors: NDArray[Any]) -> Vectors:
    """The vectors scaled to length one. A zero vector stays zero."""
    wide = np.asarray(vectors, dtype=np.float32)
    lengths = np.linalg.norm(wide, axis=-1, keepdims=True)
    unit: Vectors = np.divide(wide, lengths, out=np.zeros_like(wide), where=lengths > 0)
    return unit


def scores(query: NDArray[Any], profiles: NDArray[Any]) -> Vectors:
    """eq. 5: the cosine of the query (or each of several) with every profile."""
    cosine: Vectors = normalised(query) @ normalised(profiles).T
    return cosine


def shares(
    query: NDArray[Any], contents: NDArray[Any], sums: ProfileSums, weights: ProfileWeights
) -> NDArray[np.float64]:
    """The shares [n, 3] of content, contexts and citing papers in each paper's v_q · v̂_i."""
    means = np.maximum(sums.count, 1)[..., None]
    said, citing = from_fixed(sums.contexts) / means, from_fixed(sums.contents) / means
    parts = np.stack([contents @ query, weights.alpha * (said @ query), weights.beta * (citing @ query)], axis=-1)
    totals = parts.sum(axis=-1, keepdims=True)
    share: NDArray[np.float64] = np.divide(parts, totals, out=np.zeros_like(parts), where=totals != 0)
    return share
