"""The features of candidates for calibration, computed as in the service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from citewell.inference.sessions import Precision, cpu_has_bf16
from citewell.lab import chosen
from citewell.lab.calibration import Items
from citewell.lab.dataset import Rows
from citewell.lab.davinci.batches import PairBatches
from citewell.lab.davinci.exported import ExportedModel
from citewell.lab.davinci.lists import CandidateLists
from citewell.lab.davinci.priors import Floats
from citewell.lab.davinci.retrieve import candidate_lists, pair_texts
from citewell.lab.davinci.scoring import exported_encode, score_cached
from citewell.lab.everyday import everyday_sentences, with_everyday
from citewell.lab.experiment import Experiment
from citewell.lab.knowledge import profile_table
from citewell.lab.retrieval import BLOCK, IdOrder
from citewell.lab.second_phase.system import ABOVE
from citewell.lab.systems import System
from citewell.lab.systems_by_name import SYSTEMS
from citewell.lab.vectors import TextVectors
from citewell.profiler.encoder import TextEncoder
from citewell.profiler.profiles import normalised
from citewell.recommender.confidence import FEATURES, Signals, features
from citewell.reranker.scores import sigmoid

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Judged:
    """Candidates of some queries with the scores of all stages."""

    lists: CandidateLists
    profile: Floats
    """[queries, k]: the cosine."""
    logits: Floats
    """[queries, k]: the reranker's scores."""
    unrelated: np.ndarray
    """Whether no paper can answer a query."""
    second: Floats | None = None
    """[queries, k]: the scores of the second phase, if that made the lists. Those of `lists` are of the first."""
    weight: float = 0.0
    """Weight of the second phase's scores beside the reranker's log-odds (`recommender/joined_scores.py`)."""

    @property
    def final(self) -> Floats:
        """[queries, k]: the scores that rank what the reranker read."""
        if self.second is None or not self.weight:
            return self.logits
        return self.logits + np.float32(self.weight) * self.second

    def items(self, depth: int, *, reranked: bool) -> Items:
        """The features of the first `depth` candidates of every query, as the recommender computes them."""
        rows, right, query, unrelated = [], [], [], []
        for number, papers in enumerate(self.lists.papers[:, :depth]):
            inside = np.flatnonzero(papers >= 0).tolist()
            known = features({str(int(papers[at])): self._signals(number, at, reranked) for at in inside})
            for paper, values in known.items():
                rows.append([values[name] for name in FEATURES])
                right.append(int(paper) == int(self.lists.gold[number]))
                query.append(number)
                unrelated.append(bool(self.unrelated[number]))
        return Items(FEATURES, np.array(rows), np.array(right), np.array(query), np.array(unrelated))

    def _signals(self, query: int, at: int, reranked: bool) -> Signals:
        total, profile = float(self.lists.scores[query, at]), float(self.profile[query, at])
        rank, score, joined = at + 1, None, None
        if reranked:
            score = sigmoid(float(self.logits[query, at]))
            rank = 1 + int((self.final[query] > self.final[query, at]).sum())
            joined = float(self.final[query, at]) if self.weight else None
        second = None if self.second is None else float(self.second[query, at])
        return Signals(total, profile, (total - profile) / chosen.LEXICAL, score, rank, second, joined)

    def cut(self, depth: int) -> Judged:
        """The same with shorter lists, as if only that many candidates had been reranked."""
        second = None if self.second is None else self.second[:, :depth]
        lists, profile, logits = self.lists.cut(depth), self.profile[:, :depth], self.logits[:, :depth]
        return Judged(lists, profile, logits, self.unrelated, second, self.weight)


def with_everyday_draft(experiment: Experiment, encoder: TextEncoder) -> tuple[Experiment, Rows]:
    """The experiment with sentences that no paper answers, and their rows."""
    sentences = everyday_sentences()
    data, rows = with_everyday(experiment.data, sentences)
    # A draft without title and abstract has no content vector: its query is the context alone.
    nothing = np.zeros((1, experiment.vectors.papers.shape[1]), np.float32)
    vectors = TextVectors(
        np.vstack([experiment.vectors.papers, nothing]),
        np.vstack([experiment.vectors.contexts, normalised(encoder.encode(sentences))]),
        experiment.vectors.provenance,
    )
    task = replace(experiment.task, candidates=np.append(experiment.task.candidates, False))
    table = profile_table(experiment.known, vectors)
    return replace(experiment, data=data, task=task, vectors=vectors, table=table, order=IdOrder(data)), rows


def judge(
    experiment: Experiment,
    queries: Rows,
    everyday: Rows,
    depth: int,
    model: ExportedModel,
    cache: Path,
    on_progress: OnProgress,
    system: str = "hybrid",
    weight: float = 0.0,
) -> Judged:
    """The system's first `depth` candidates of the queries and the everyday sentences, read by the reranker.

    `weight`: of the second phase's scores, where `system` is the second phase.
    """
    asked = np.concatenate([queries, everyday])
    lists = candidate_lists(SYSTEMS[system](experiment), experiment, asked, depth, on_progress)
    profile = _scores(experiment.mapped_profiler, asked, lists)
    second = None
    if system == "second-phase":
        second = lists.scores - np.float32(ABOVE)
        lists = replace(lists, scores=_scores(experiment.hybrid, asked, lists))
    settings = model.settings
    texts = pair_texts(experiment, settings.mentions if settings.budget.mentions else 0)
    pairs = PairBatches(lists, texts, model.tokenizer(), settings.decay)
    precision = Precision.BF16 if cpu_has_bf16() else Precision.FP32
    scored = score_cached(
        model.model(),
        pairs,
        exported_encode(model.path, precision, 0),
        cache / "scores",
        lambda done: on_progress("queries reranked", done, len(asked)),
        unanswerable=True,
    )["davinci"]
    unrelated = np.arange(len(asked)) >= len(queries)
    return Judged(lists, profile, scored.logit, unrelated, second, weight if second is not None else 0.0)


def _scores(system: System, asked: Rows, lists: CandidateLists) -> Floats:
    """The system's scores of the papers in some lists."""
    found = np.zeros(lists.papers.shape, np.float32)
    for start in range(0, len(asked), BLOCK):
        block = slice(start, start + BLOCK)
        papers = np.maximum(lists.papers[block], 0)
        found[block] = np.take_along_axis(system.scores(asked[block]), papers, axis=1)
    return found
