"""Dense encoders without training: the query's cosine with each paper's title and abstract, by any sentence encoder.

The encoder is a folder or a Hugging Face id. SPECTER2, SciNCL and SciBERT are read as their authors use them: title
[SEP] abstract, the first token's state (see `citewell.profiler.encoder_files`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from citewell.lab.dataset import Rows
from citewell.lab.experiment import Encoding, Experiment, vectors_of
from citewell.lab.rivals.rival import Rival
from citewell.lab.training import State
from citewell.lab.vectors import TextVectors
from citewell.profiler.encoder_files import DEFAULT_ENCODER
from citewell.profiler.profiles import QueryWeights, Vectors, normalised, query_vector


@dataclass(frozen=True, slots=True)
class DenseSettings:
    """The settings of a dense encoder; nothing is learned."""

    encoder: str = DEFAULT_ENCODER
    paper_tokens: int = 0
    context_tokens: int = 0
    context: float = 1.0
    """The weight of the context in the query; as the encoders' authors retrieve, the context alone."""
    paper: float = 0.0
    """The weight of the citing paper's title and abstract."""
    cache: str = ""
    """Folder of vectors, as in `--cache`; needed for another encoder than the experiment's."""


class DenseEncoder:
    """A `System`: cosine of texts, no citation counts for anything."""

    def __init__(self, settings: DenseSettings, experiment: Experiment, vectors: TextVectors) -> None:
        self.name = "dense"
        self._weights = QueryWeights(settings.context, settings.paper)
        self._data, self._vectors = experiment.data, vectors
        self._papers = normalised(vectors.papers)

    def scores(self, queries: Rows) -> Vectors:
        citing = self._data.contexts.citing[queries]
        contexts, papers = normalised(self._vectors.contexts[queries]), self._papers[citing]
        asked = normalised(query_vector(contexts, papers, self._weights))
        found: Vectors = np.asarray(asked @ self._papers.T, np.float32)
        return found


def load(settings: DenseSettings, experiment: Experiment, weights: State) -> DenseEncoder:
    """The encoder's vectors of all texts, from the cache or newly encoded."""
    vectors = experiment.vectors
    if (settings.encoder, settings.paper_tokens, settings.context_tokens) != (DEFAULT_ENCODER, 0, 0):
        if not settings.cache:
            raise ValueError("cache must name a folder for the vectors of another encoder")
        encoding = Encoding(settings.encoder, settings.paper_tokens, settings.context_tokens)
        vectors = vectors_of(experiment.data, encoding, Path(settings.cache), lambda *_: None)
    return DenseEncoder(settings, experiment, vectors)


DENSE = Rival("dense", "Dense encoder", DenseSettings, None, load)
