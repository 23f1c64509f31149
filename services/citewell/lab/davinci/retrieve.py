"""Candidate lists for training and evaluation, by the lab's protocol and its exact systems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from citewell.lab.brackets import Brackets
from citewell.lab.dataset import Rows
from citewell.lab.davinci.lists import CandidateLists
from citewell.lab.davinci.runs import RunFolder
from citewell.lab.davinci.settings import TrainSettings
from citewell.lab.davinci.texts import PairTexts, make_mentions
from citewell.lab.davinci.train import TrainingData
from citewell.lab.experiment import Experiment
from citewell.lab.knowledge import citations
from citewell.lab.origins import same_origin
from citewell.lab.protocol import verify_rankings
from citewell.lab.retrieval import BLOCK, eligible_scores
from citewell.lab.sampling import sampled
from citewell.lab.systems import System
from citewell.lab.systems_by_name import SYSTEMS

OnProgress = Callable[[str, int, int], None]


def candidate_lists(
    system: System, experiment: Experiment, queries: Rows, depth: int, on_progress: OnProgress
) -> CandidateLists:
    """The system's top `depth` of some queries of the experiment's task.

    The system leaves out a train query's own citations (see `systems`), because otherwise λ^r would leak the answer.
    """
    data, task = experiment.data, replace(experiment.task, queries=queries)
    papers = np.full((len(queries), depth), -1, np.int32)
    scores = np.zeros((len(queries), depth), np.float32)
    gold = data.contexts.cited[queries].astype(np.int32)
    gold_score = np.zeros(len(queries), np.float32)
    for start in range(0, len(queries), BLOCK):
        block = queries[start : start + BLOCK]
        for row, values in enumerate(eligible_scores(system, data, task, block), start=start):
            best = experiment.order.top(values, depth)
            papers[row, : len(best)], scores[row, : len(best)] = best, values[best]
            gold_score[row] = values[gold[row]]
        on_progress(f"{task.split} candidates", min(start + BLOCK, len(queries)), len(queries))
    verify_rankings(data, task, papers)
    return CandidateLists(queries.astype(np.int32), papers, scores, gold, gold_score)


def pair_texts(experiment: Experiment, mentions: int) -> PairTexts:
    """The texts of an experiment's pairs, with `mentions` citing contexts per candidate."""
    if not mentions:
        return PairTexts(experiment.data)
    known = experiment.task.knowledge
    return PairTexts(experiment.data, make_mentions(experiment.data, known, experiment.vectors.contexts, mentions))


def asked_lists(
    settings: TrainSettings,
    experiment: Experiment,
    count: int,
    on_progress: OnProgress,
    *,
    depth: int = 100,
    seed: int = 13,
    candidates: str = "",
) -> tuple[CandidateLists, PairTexts]:
    """A seeded sample of an experiment's queries with candidates and texts, as in a run."""
    system = SYSTEMS[candidates or settings.candidates](experiment)
    lists = candidate_lists(system, experiment, sampled(experiment.task.queries, count, seed), depth, on_progress)
    return lists, pair_texts(experiment, settings.mentions if settings.budget.mentions else 0)


def leaky(experiment: Experiment) -> Experiment:
    """The experiment with profiles that include the query's own citations, to measure the effect of that leak."""
    table = replace(experiment.table, citations=citations(experiment.data, np.empty(0, np.int64)))
    return replace(experiment, table=table)


def training_data(
    settings: TrainSettings, experiment: Experiment, on_progress: OnProgress, keep: RunFolder | None = None
) -> TrainingData:
    """The training data for these settings from a prepared data set; lists are stored in `keep` and reused.

    ValueError if `keep` was begun with another set, or with other learned parts of HYBRID.
    """
    if keep:
        same_origin(keep.path, experiment.second_phase_origin)
    train, validation = experiment.of_split("train"), experiment.of_split("validation")
    if not settings.leave_one_out:
        if settings.candidates != "profiler":
            raise ValueError("only the profiler can be asked to leak")
        train = leaky(train)

    def lists_of(each: Experiment, count: int) -> CandidateLists:
        name = f"{each.task.split}-{settings.candidates}-{count}-{settings.depth}-{settings.seed}"
        kept = keep.lists(name) if keep and settings.leave_one_out else None
        if kept and kept.exists():
            return CandidateLists.load(kept)
        queries = sampled(each.to_learn_from, count, settings.seed)
        made = candidate_lists(SYSTEMS[settings.candidates](each), each, queries, settings.depth, on_progress)
        if kept:
            kept.parent.mkdir(parents=True, exist_ok=True)
            made.save(kept)
        return made

    learned, watched = lists_of(train, settings.train_queries), lists_of(validation, settings.validation_queries)
    found = (learned.papers >= 0).sum(axis=1)  # the oldest papers have few candidates
    if settings.whole_bracket:
        found -= Brackets(experiment.data).sizes(learned.queries) - 1
    usable = found > settings.sampling.count
    if not settings.inject:
        usable &= learned.gold_position < settings.depth
    shown = settings.mentions if settings.budget.mentions else 0
    return TrainingData(learned.take(np.flatnonzero(usable)), watched, pair_texts(experiment, shown))
