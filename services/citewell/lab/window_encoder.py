"""Trains the window encoder: ENC1 goes on learning to tell, from the words around a marker, what is cited there.

Each train query ranks its cited paper before some of HYBRID's first candidates and before random papers. Two losses: by
HYBRID's score, where the window's vector is added to the query's, so that it learns what words and whole texts do not
say; and by the cosine alone. Profiles stay those of ENC1, and leave the query paper's own citations out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from citewell.lab import chosen
from citewell.lab.dataset import Rows
from citewell.lab.davinci.lists import CandidateLists
from citewell.lab.experiment import Experiment, OnProgress
from citewell.lab.hybrid_examples import RANDOM_LEXICAL, make_examples
from citewell.lab.sentence_training import Ints, SentenceLearner, SentenceSettings, write_encoder
from citewell.lab.training import State
from citewell.profiler.encoder import GraphEncoder
from citewell.profiler.profiles import Vectors
from citewell.profiler.window_encoder import DESCRIPTION

_POOL = 20
"""The number of batches sorted by length together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSettings(SentenceSettings):
    """How a window encoder is trained."""

    batch: int = 64
    steps: int = 900
    seed: int = 23
    hard: int = 24
    """Negatives of a query from these candidates."""
    random: int = 1024
    """Random papers that are negatives of a whole batch."""
    temperature: float = 0.1
    """Of the loss by HYBRID's score."""
    cosine_share: float = 0.5
    """The weight of the loss by the cosine alone."""
    cosine_temperature: float = 0.05
    weight: float = 0.5
    """The weight of the window's vector beside the query's at the start; it is learned."""


class WindowLearner(SentenceLearner):
    """A `training.Learner`."""

    def __init__(
        self,
        settings: WindowSettings,
        experiment: Experiment,
        encoder: GraphEncoder,
        folder: Path,
        on_progress: OnProgress,
        lists_file: Path,
    ) -> None:
        """`encoder` is ENC1 with windows for texts, `folder` its files. `experiment` asks validation queries.

        The candidate lists, the costly part, are kept in `lists_file`.
        """
        super().__init__(settings, experiment, folder)
        self._settings, self._encoder = settings, encoder
        self._weight = nn.Parameter(torch.tensor(float(np.log(settings.weight))))
        self._optimiser.add_param_group({"params": [self._weight], "lr": 5e-3, "peak": 5e-3})
        self._examples = make_examples(
            self.train, settings.queries, settings.depth, settings.seed, on_progress, lists_file
        )
        rows = CandidateLists.load(lists_file).queries
        self._tokens = encoder.tokenize([self.train.data.contexts.texts[int(row)] for row in rows])
        self._lengths = np.array([len(each) for each in self._tokens])

    def batch(self, number: int) -> Ints:
        """Train queries with windows of similar length."""
        order, at, rng = self.epoch_of(number, len(self._lengths))
        count = len(order) // self._settings.batch
        pools = np.array_split(order, max(1, count // _POOL))
        sorted_pools = [pool[np.argsort(self._lengths[pool], kind="stable")] for pool in pools]
        batches = np.concatenate(sorted_pools).reshape(count, self._settings.batch)
        rows: Ints = batches[rng.permutation(count)[at]]
        return rows

    def loss(self, rows: Ints, rng: np.random.Generator) -> Tensor:
        """Both losses of some train queries."""
        settings, examples = self._settings, self._examples
        columns = rng.integers(0, examples.candidates.shape[1], (len(rows), settings.hard))
        papers = examples.candidates[rows[:, None], columns]
        hard = torch.from_numpy(examples.profiles[np.maximum(papers, 0)])
        random, is_cited = examples.random_papers(rows, settings.random, rng)
        drawn = torch.from_numpy(examples.profiles[random])
        cited = torch.from_numpy(examples.profiles[examples.cited[rows]])
        asked = self._asked(rows)
        cosines = (
            (asked * cited).sum(1)[:, None],
            torch.einsum("qd,qnd->qn", asked, hard).masked_fill(torch.from_numpy(papers < 0), -torch.inf),
            (asked @ drawn.T).masked_fill(torch.from_numpy(is_cited), -torch.inf),
        )
        lexical = (
            torch.from_numpy(examples.cited_lexical[rows])[:, None],
            torch.from_numpy(examples.lexical[rows[:, None], columns]),
            torch.tensor(RANDOM_LEXICAL),
        )
        first = torch.zeros(len(rows), dtype=torch.long)
        alone = torch.cat(cosines, 1)
        hybrid = torch.cat([one + chosen.LEXICAL * other for one, other in zip(cosines, lexical, strict=True)], 1)
        by_score = nn.functional.cross_entropy(hybrid / settings.temperature, first)
        by_cosine = nn.functional.cross_entropy(alone / settings.cosine_temperature, first)
        return by_score + settings.cosine_share * by_cosine

    def _asked(self, rows: Ints) -> Tensor:
        """eq. 4 with the window's vector added, at unit length."""
        examples, weights = self._examples, chosen.QUERY
        plain = torch.from_numpy(weights.gamma * examples.contexts[rows] + weights.delta * examples.drafts[rows])
        windows = self.vectors([self._tokens[row].ids for row in rows])
        return nn.functional.normalize(plain.float() + torch.exp(self._weight) * windows, dim=1)

    def validate(self) -> float:
        """MRR of the cited paper among all papers, by the cosine of the window's vector and the profile."""
        contexts = self._validation.data.contexts
        tokens = self._encoder.tokenize([contexts.texts[int(row)] for row in self._watched])
        return mrr_of(self._validation, self._watched, self.encoded([each.ids for each in tokens]))

    def state(self) -> State:
        return super().state() | {"weight": self._weight.detach().clone()}

    def restore(self, weights: State, state: State) -> None:
        super().restore(weights, state)
        with torch.no_grad():
            self._weight.copy_(state["weight"])


def export_window_encoder(
    weights: State, encoder: str, made_for: str, tokens: int, contexts: Sequence[str], out: Path
) -> None:
    """Writes the folder that a profiler loads, and for which ENC1 it was made."""
    write_encoder(weights, encoder, contexts, out)
    told = {"made for": made_for, "tokens": tokens}
    (out / DESCRIPTION).write_text(json.dumps(told, indent=1) + "\n", "utf-8")


def cosine_mrr(experiment: Experiment, queries: Rows) -> float:
    """The MRR of the experiment's window encoder alone; 0 without one."""
    return mrr_of(experiment, queries, experiment.windows(queries)) if experiment.window_encoder else 0.0


def mrr_of(experiment: Experiment, queries: Rows, windows: Vectors) -> float:
    """MRR in % of the cited papers among all papers, by the cosine of the windows' vectors with the profiles."""
    scores = windows @ experiment.profiler.profiles.T
    cited = experiment.data.contexts.cited[queries]
    total = 0.0
    for row, eligible in enumerate(experiment.task.eligible(experiment.data, queries)):
        total += 1 / max(1, int(np.count_nonzero(eligible & (scores[row] >= scores[row, cited[row]]))))
    return 100 * total / max(1, len(queries))
