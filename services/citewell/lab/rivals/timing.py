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
from citewell.lab.rivals.rival import GlobalSystem
from citewell.lab.systems import System

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


def mean_ms(ask: Callable[[int], object], queries: Sequence[int]) -> float:
    """The mean CPU milliseconds of all threads of one call. The first query is asked once before, to warm up."""
    ask(queries[0])
    began = time.process_time()
    for query in queries:
        ask(query)
    return 1000 * (time.process_time() - began) / len(queries)


def encoder_times(experiment: Experiment, encoding: Encoding, queries: Rows) -> EncoderTimes:
    """The time of ENC1 for the queries' texts, one at a time."""
    of_papers, of_contexts = encoding.load()
    data = experiment.data
    titles, abstracts = data.papers.titles, data.papers.abstracts
    asked = queries[:TIMED].tolist()

    def paper(query: int) -> None:
        row = int(data.contexts.citing[query])
        of_papers.encode([of_papers.paper_text(titles[row], abstracts[row])])

    context_ms = mean_ms(lambda query: of_contexts.encode([data.contexts.texts[query]]), asked)
    return EncoderTimes(context_ms, mean_ms(paper, asked))


def retrieval_ms(system: System, experiment: Experiment, queries: Rows) -> float:
    """The time of scoring and ranking all papers for a query; the protocol's checks are not counted."""

    def asked(some: Rows) -> float:
        task = replace(experiment.task, queries=some)
        return search(system, experiment.data, task, _DEPTH, experiment.order, block=1).cpu_seconds

    asked(queries[:1])  # to warm up
    return 1000 * asked(queries[:TIMED]) / len(queries[:TIMED])


def whole_list_ms(system: GlobalSystem, experiment: Experiment, lists: ReferenceLists) -> float:
    """The time of answering a draft with a whole reference list."""
    some = np.arange(min(TIMED, len(lists)))
    rank(system, experiment, lists[some[:1]], block=1)  # to warm up
    return 1000 * rank(system, experiment, lists[some], block=1).cpu_seconds / len(some)
