"""The known citations as data: citing pairs, vectors, sums, and the contribution of each citing paper."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from citewell.lab.dataset import Column, Dataset, Rows
from citewell.lab.vectors import TextVectors
from citewell.profiler.profiles import Fixed, ProfileSums, pair_mean, sum_citations, to_fixed


@dataclass(frozen=True, slots=True, eq=False)
class Citations:
    """The known contexts, sorted by (citing, cited) pair."""

    contexts: Rows
    """Rows of the contexts, pair after pair."""
    starts: Rows
    """Where each pair's contexts start in `contexts`."""
    citing: Column
    """Citing paper of each pair; pairs of one citing paper are adjacent."""
    cited: Column

    def of_paper(self, citing: int) -> Rows:
        """The pairs in which a paper cites others. They must not be used for that paper's own queries."""
        low, high = np.searchsorted(self.citing, (citing, citing + 1))
        return np.arange(low, high)

    def contexts_of_paper(self, citing: int) -> slice:
        """The positions of a paper's own contexts in `contexts`."""
        low, high = np.searchsorted(self.citing, (citing, citing + 1))
        ends = np.append(self.starts, len(self.contexts))
        return slice(int(ends[low]), int(ends[high]))


def citations(data: Dataset, knowledge: Rows) -> Citations:
    """The citing pairs of some contexts."""
    citing, cited = data.contexts.citing[knowledge], data.contexts.cited[knowledge]
    order = np.lexsort((knowledge, cited, citing))
    citing, cited = citing[order], cited[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (citing[1:] != citing[:-1]) | (cited[1:] != cited[:-1])
    starts = np.flatnonzero(new)
    return Citations(knowledge[order], starts, citing[starts], cited[starts])


@dataclass(frozen=True, slots=True, eq=False)
class ProfileTable:
    """The integer sums of every paper and the contribution of each pair, as the ledger keeps them."""

    citations: Citations
    pair_contexts: Fixed
    """s_ji of each pair."""
    contents: Fixed
    """v of every paper."""
    sums: ProfileSums

    def without(self, citing: int) -> tuple[Column, ProfileSums]:
        """The papers that one paper cites, and their sums without it: exact leave-one-paper-out."""
        pairs = self.citations.of_paper(citing)
        cited = self.citations.cited[pairs]
        count = len(pairs)
        own = ProfileSums(
            self.pair_contexts[pairs],
            np.broadcast_to(self.contents[citing], (count, self.contents.shape[1])),
            np.ones(count, np.int64),
        )
        return cited, self.sums[cited] - own


def profile_table(known: Citations, vectors: TextVectors) -> ProfileTable:
    """The sums of all papers from the known citations."""
    contexts = to_fixed(vectors.contexts[known.contexts])
    contents = to_fixed(vectors.papers)
    pairs = np.split(contexts, known.starts[1:]) if len(known.starts) else []
    pair_contexts = np.array([pair_mean(pair) for pair in pairs], np.int64).reshape(len(pairs), contents.shape[1])
    return ProfileTable(
        known,
        pair_contexts,
        contents,
        sum_citations(known.cited, pair_contexts, contents[known.citing], len(contents)),
    )
