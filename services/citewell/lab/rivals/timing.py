"""CPU time of one query alone, measured in the same way for rivals and for ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from citewell.lab.dataset import Rows
from citewell.lab.experiment import Encoding, Experiment
from citewell.lab.reference_lists import ReferenceLists, rank
from citewell.lab.retrieval import search
from citewell.lab.systems import GlobalSystem, System
from citewell.profiler.encoder import GraphEncoder

TIMED = 30
"""Queries that are asked one at a time to measure a system's time."""
_DEPTH = 10


@dataclass(frozen=True, slots=True)
class EncoderTimes:
    """CPU milliseconds of ENC1. The lab looks vectors up in a cache; a service encodes each query."""

    context: float
    paper: float
    """A title with its abstract."""

    def of(self, parts: Sequence[str]) -> float:
        """The time of the texts that a system has encoded: "context", "paper"."""
        return sum({"context": self.context, "paper": self.paper}[part] for part in parts)


def median_ms(ask: Callable[[int], float], queries: Sequence[int]) -> float:
    """The median of the CPU milliseconds, of all threads, that `ask` tells for each query.

    The first query is asked once before, to warm up. The median ignores queries that other work on the machine slowed.
    """
    ask(queries[0])
    return float(np.median([ask(query) for query in queries]))


def encoder_times(experiment: Experiment, encoding: Encoding, queries: Rows) -> EncoderTimes:
    """The time of ENC1 for the queries' texts, one at a time."""
    of_papers, of_contexts = encoding.load()
    data = experiment.data
    titles, abstracts = data.papers.titles, data.papers.abstracts
    asked = queries[:TIMED].tolist()

    def ms(encoder: GraphEncoder, text: str) -> float:
        began = time.process_time()
        encoder.encode([text])
        return 1000 * (time.process_time() - began)

    def paper(query: int) -> float:
        row = int(data.contexts.citing[query])
        return ms(of_papers, of_papers.paper_text(titles[row], abstracts[row]))

    context_ms = median_ms(lambda query: ms(of_contexts, data.contexts.texts[query]), asked)
    return EncoderTimes(context_ms, median_ms(paper, asked))


def retrieval_ms(system: System, experiment: Experiment, queries: Rows) -> float:
    """The time of scoring and ranking all papers for a query; the protocol's checks are not counted."""

    def ask(query: int) -> float:
        task = replace(experiment.task, queries=np.array([query]))
        return 1000 * search(system, experiment.data, task, _DEPTH, experiment.order, block=1).cpu_seconds

    return median_ms(ask, queries[:TIMED].tolist())


def whole_list_ms(system: GlobalSystem, experiment: Experiment, lists: ReferenceLists) -> float:
    """The time of answering a draft with a whole reference list."""
    return median_ms(
        lambda at: 1000 * rank(system, experiment, lists[np.array([at])]).cpu_seconds, range(min(TIMED, len(lists)))
    )
