"""A data set prepared for evaluation (read, encoded, with a fixed protocol), and its systems by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citewell.index.second_phase_model import SecondPhaseModel, configured_model
from citewell.lab import chosen
from citewell.lab.brackets import Brackets
from citewell.lab.dataset import Dataset, Rows, read_dataset
from citewell.lab.knowledge import Citations, ProfileTable, citations, profile_table
from citewell.lab.learned_contexts import learned_from
from citewell.lab.lexical import LexicalProfile, Lexicon
from citewell.lab.origins import origin_of
from citewell.lab.protocol import Mode, Task, make_task, training_task
from citewell.lab.retrieval import IdOrder
from citewell.lab.systems import Fusion, Profiler
from citewell.lab.vectors import TextVectors, VectorCache, context_keys, encode_missing, paper_keys, text_vectors
from citewell.profiler.encoder import GraphEncoder, load_encoder
from citewell.profiler.encoder_files import DEFAULT_ENCODER, read_encoder_files
from citewell.profiler.lexical import FieldWeights, TermWeights
from citewell.profiler.profiles import ProfileWeights, Vectors
from citewell.profiler.query_map import QueryMap, find_query_map
from citewell.profiler.term_weights import OFF, PACKAGED, LearnedWeights, find_term_weights
from citewell.profiler.window_encoder import WindowEncoder, load_window_encoder

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Encoding:
    """The vectors of an experiment; 0 tokens = the model's own limit."""

    encoder: str = DEFAULT_ENCODER
    paper_tokens: int = 0
    context_tokens: int = 0
    raw: bool = False
    """Use the model's vectors without normalising them."""

    def load(self) -> tuple[GraphEncoder, GraphEncoder]:
        """The encoders of papers and of contexts."""
        contexts = load_encoder(self.encoder, max_tokens=self.context_tokens)
        if self.paper_tokens == self.context_tokens:
            return contexts, contexts
        return load_encoder(self.encoder, max_tokens=self.paper_tokens), contexts


@dataclass(frozen=True, slots=True)
class LearnedParts:
    """What HYBRID has learned, each like the setting of its service."""

    query_map: str = ""
    """A file, "none", or empty for the map in the package, if there is one."""
    term_weights: str = PACKAGED
    """A file, "packaged", or "none"."""
    window_encoder: str = PACKAGED
    """A folder, "packaged", or "none"."""
    second_phase: str = PACKAGED
    """A file, "packaged", or "none"."""


NOTHING_LEARNED = LearnedParts(OFF, OFF, OFF, OFF)


@dataclass(frozen=True, eq=False)
class Experiment:
    """A data set under a protocol, and the knowledge that the protocol allows."""

    data: Dataset
    task: Task
    vectors: TextVectors
    known: Citations
    table: ProfileTable
    order: IdOrder
    query_map: QueryMap | None = None
    """Which map HYBRID applies, as the services do."""
    term_weights: LearnedWeights | None = None
    """Learned weights of the words near the marker, as in the services."""
    window_encoder: WindowEncoder | None = None
    """Encodes the words around the marker for the second phase, as in the services."""
    second_phase: SecondPhaseModel | None = None
    """Which model ranks HYBRID's best again in the system "second-phase"; None = there is none, and no such system."""
    encoder: str = ""
    """`model_hash` of the encoder of `vectors`."""
    encoder_folder: Path | None = None
    """Its folder."""

    @cached_property
    def lexicon(self) -> Lexicon:
        return Lexicon(self.data)

    @cached_property
    def brackets(self) -> Brackets:
        return Brackets(self.data)

    @cached_property
    def _first_contexts(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        return np.unique(self.data.contexts.citing, return_index=True)

    def context_of(self, papers: Rows) -> Rows:
        """A context of each of these citing papers, which stands for its paper where only that is read."""
        citing, first = self._first_contexts
        at = np.minimum(np.searchsorted(citing, papers), len(citing) - 1)
        if not np.array_equal(citing[at], papers):
            raise ValueError(f"paper {self.data.papers.ids[int(papers[citing[at] != papers][0])]!r} cites nothing")
        return first[at].astype(np.int64)

    def windows(self, queries: Rows) -> Vectors:
        """The vectors of the words around the queries' markers; without a window encoder they have no numbers."""
        if self.window_encoder is None:
            return np.empty((len(queries), 0), np.float32)
        return self.window_encoder.encoder.encode([self.data.contexts.texts[int(query)] for query in queries])

    @property
    def learned_hashes(self) -> tuple[str, str, str]:
        """Of query map, term weights and window encoder, as a table of confidence names them; empty = none."""
        query_map, words, window = self.query_map, self.term_weights, self.window_encoder
        return (
            query_map.digest if query_map else "",
            words.digest if words else "",
            window.hash if window else "",
        )

    @property
    def origin(self) -> dict[str, str | int]:
        """What HYBRID's candidates depend on, for a training that learns from them."""
        query_map, words, _ = self.learned_hashes
        learned = {"encoder": self.encoder, "query map": query_map, "term weights": words}
        return origin_of(self.data, self.task.mode) | learned

    @property
    def second_phase_origin(self) -> dict[str, str | int]:
        """What the second phase's candidates depend on."""
        second = self.second_phase.hash if self.second_phase else ""
        return self.origin | {"window encoder": self.learned_hashes[2], "second phase": second}

    @property
    def to_learn_from(self) -> Rows:
        """The task's queries. On the train split only those that taught neither ENC1 nor the window encoder."""
        queries = self.task.queries
        if self.task.split != "train":
            return queries
        texts = [self.data.contexts.texts[int(query)] for query in queries]
        taught = np.zeros(len(queries), np.bool_)
        for folder in (self.encoder_folder, self.window_encoder and self.window_encoder.folder):
            if folder:
                taught |= learned_from(folder, texts)
        return queries[~taught]

    def of_split(self, split: str) -> Experiment:
        """The same set and knowledge with the queries of another split."""
        mode = self.task.mode
        task = training_task(self.data, mode) if split == "train" else make_task(self.data, split, mode)
        return replace(self, task=task)

    @property
    def profiler(self) -> Profiler:
        """eq. 3–5 with the chosen settings; the services serve it as PROFILE."""
        return self.profiler_with("profiler", chosen.PROFILE)

    def profiler_with(self, name: str, weights: ProfileWeights) -> Profiler:
        """eq. 3–5 with other profile weights."""
        return Profiler(name, self.data, self.vectors, self.table, weights, chosen.QUERY)

    @property
    def mapped_profiler(self) -> Profiler:
        """The cosine in HYBRID: eq. 5, with v_q by the query map if there is one."""
        weights, table = chosen.PROFILE, self.table
        return Profiler("mapped", self.data, self.vectors, table, weights, chosen.QUERY, self.query_map)

    @property
    def content(self) -> Profiler:
        """The ablation α = β = 0: the query's cosine with the content alone."""
        return self.profiler_with("content", ProfileWeights(0.0, 0.0))

    def lexical_profile(
        self,
        name: str = "lexical-profile",
        fields: FieldWeights = chosen.FIELDS,
        terms: TermWeights = chosen.TERMS,
        counted: NDArray[np.bool_] | None = None,
        *,
        alone: bool = False,
    ) -> LexicalProfile:
        """BM25 over titles, abstracts and citing contexts, words near the marker counting more."""
        rules = chosen.BM25, fields, terms
        return LexicalProfile(
            name, self.data, self.lexicon, self.known, *rules, counted, alone=alone, learned=self.term_weights
        )

    @property
    def hybrid(self) -> Fusion:
        """eq. 5 plus the weighted lexical profile, the best variant beyond eq. 3; the services serve it as HYBRID."""
        return Fusion("hybrid", [(1.0, self.mapped_profiler), (chosen.LEXICAL, self.lexical_profile())])


def prepare(
    folder: Path,
    split: str,
    mode: Mode,
    encoding: Encoding,
    cache: Path,
    on_progress: OnProgress,
    *,
    titles_only: bool = False,
    learned: LearnedParts = LearnedParts(),
) -> Experiment:
    """Reads the set in `folder` and encodes texts without a cached vector."""
    data = read_dataset(folder)
    if titles_only:
        data = data.titles_only()
    vectors = vectors_of(data, encoding, cache, on_progress)
    task = make_task(data, split, mode)
    known = citations(data, task.knowledge)
    encoder, encoder_folder = encoding.load()[1].model_hash, read_encoder_files(encoding.encoder).folder
    found = find_query_map(learned.query_map, encoder)
    table, order = profile_table(known, vectors), IdOrder(data)
    words = find_term_weights(learned.term_weights)
    window = load_window_encoder(learned.window_encoder, encoder)
    second = configured_model(learned.second_phase)
    learned_parts = found, words, window, second
    return Experiment(data, task, vectors, known, table, order, *learned_parts, encoder, encoder_folder)


def vectors_of(data: Dataset, encoding: Encoding, cache: Path, on_progress: OnProgress) -> TextVectors:
    """Every vector of a set, from the cache or newly encoded."""
    paper_encoder, context_encoder = encoding.load()
    papers, contexts = data.papers, data.contexts
    of_papers = VectorCache(cache, paper_encoder.exact_hash)
    encode_missing(
        of_papers,
        paper_keys(data),
        lambda row: paper_encoder.paper_text(papers.titles[row], papers.abstracts[row]),
        paper_encoder.encode,
        source_of(paper_encoder),
        lambda done, total: on_progress("papers encoded", done, total),
    )
    of_contexts = of_papers if context_encoder is paper_encoder else VectorCache(cache, context_encoder.exact_hash)
    encode_missing(
        of_contexts,
        context_keys(data),
        lambda row: contexts.texts[row],
        context_encoder.encode,
        source_of(context_encoder),
        lambda done, total: on_progress("contexts encoded", done, total),
    )
    vectors = text_vectors(data, of_papers, of_contexts, raw=encoding.raw)
    made_by = f"papers {source_of(paper_encoder)}; contexts {source_of(context_encoder)}"
    return replace(vectors, provenance=f"{made_by}. Encoded by: {vectors.provenance}")


def source_of(encoder: GraphEncoder) -> str:
    """The description of an encoder's vectors in reports."""
    return f"{encoder.model_id} ({encoder.model_hash}, at most {encoder.max_tokens} tokens)"
