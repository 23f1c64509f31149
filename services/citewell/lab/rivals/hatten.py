"""HAtten, the learned prefetcher of hatten-scibert: training with mined sets, and retrieval by cosine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citewell.lab.brackets import Brackets
from citewell.lab.dataset import Rows
from citewell.lab.experiment import Experiment, OnProgress
from citewell.lab.rivals.hatten_model import HAttenEncoder
from citewell.lab.rivals.hatten_texts import HAttenTexts, encoded, words_of
from citewell.lab.rivals.optimisers import Optimisers
from citewell.lab.rivals.rival import Rival
from citewell.lab.rivals.validation import ValidationPool
from citewell.lab.rivals.word_vectors import PAD, Words
from citewell.lab.systems import System
from citewell.lab.training import State
from citewell.profiler.profiles import Vectors


@dataclass(frozen=True, slots=True)
class HAttenSettings:
    """The published settings are the defaults, but for the lengths of texts, which the paper does not state, and for
    `refresh`, `mined_papers` and `mined_queries`, which fit a budget of minutes.

    The heads, the inner size, the dropout and the margin are those of the authors' published configuration.
    """

    word_vectors: str = ""
    """A file in GloVe's text format; empty: vectors are learnt from the train corpus."""
    dimensions: int = 200
    """Of learnt vectors; a file has its own."""
    vocabulary: int = 30_000
    least_often: int = 3
    """A word of the train corpus counts if it stands there so often."""
    title_words: int = 24
    abstract_words: int = 96
    context_words: int = 112
    """Those nearest to the place of the missing citation."""
    heads: int = 8
    inner: int = 1024
    dropout: float = 0.1
    margin: float = 0.05
    batch: int = 64
    """Queries of one step."""
    mined: int = 4
    """Papers of a query drawn from its mined set."""
    mined_depth: int = 100
    """How many of the best candidates of a query are its mined set."""
    refresh: int = 150
    """Steps between two minings (5,000 in the paper)."""
    mined_papers: int = 12_000
    """Papers that a mining embeds and ranks, drawn anew each time; cited papers are always among them."""
    mined_queries: int = 6_000
    """Train queries that have mined sets until the next mining; the steps use these."""
    across: bool = False
    """The papers of the other queries of a batch are negatives of a query as well, which costs nothing more to encode.
    The paper does not do so; short trainings need it."""
    rate: float = 1e-4
    decay: float = 1e-5
    validation_queries: int = 300
    validation_papers: int = 8_000
    """Papers besides the cited ones among which a validation ranks."""
    seed: int = 13


class HAttenLearner:
    """Triplet training with negative and positive mining (hatten-scibert §4.3)."""

    def __init__(self, settings: HAttenSettings, experiment: Experiment, on_progress: OnProgress) -> None:
        on_progress("word vectors", 0, 1)
        self._words, vectors = words_of(experiment, settings)
        on_progress("word vectors", 1, 1)
        torch.manual_seed(settings.seed)
        self._settings = settings
        self._vectors = torch.from_numpy(vectors)
        self.model = encoder(settings, self._vectors)
        self._optimisers = Optimisers(
            torch.optim.Adam(self.model.parameters(), lr=settings.rate, betas=(0.9, 0.999), weight_decay=settings.decay)
        )
        self._train = experiment.of_split("train")
        watched = experiment.of_split("validation").task
        self._pool = ValidationPool(
            experiment.data, watched, settings.validation_queries, settings.validation_papers, settings.seed
        )
        self._texts = HAttenTexts(experiment.data, self._words, settings)
        self._answers = Brackets(experiment.data).answers
        self._candidates = np.flatnonzero(self._train.task.candidates)
        self._queries = self._train.task.queries
        self._mined: NDArray[np.int32] = np.empty((0, settings.mined_depth), np.int32)

    def step(self, number: int) -> float:
        settings = self._settings
        if number and number % settings.refresh == 0:
            self._mine(number)
        torch.manual_seed(settings.seed * 1_000_003 + number)
        rng = np.random.default_rng((settings.seed, 1, number))
        picked = rng.choice(len(self._queries), min(settings.batch, len(self._queries)), replace=False)
        return self._optimisers.step(self.loss(picked, rng))

    def loss(self, picked: Rows, rng: np.random.Generator) -> Tensor:
        """The mean hinge over the triplets of some of the queries in use."""
        settings = self._settings
        queries = self._queries[picked]
        papers = np.stack([self._papers(int(row), int(query), rng) for row, query in zip(picked, queries, strict=True)])
        self.model.train()
        with torch.autocast("cpu", torch.bfloat16):
            asked: Tensor = self.model(self._texts.queries(queries))
            distinct, place = np.unique(papers, return_inverse=True)
            vectors: Tensor = self.model(self._texts.papers(distinct))
        every = asked @ vectors.T
        own = every.gather(1, torch.from_numpy(place.reshape(papers.shape)))
        cited, mined, drawn = own[:, :1], own[:, 1:-1], own[:, -1:]
        negative = torch.relu(own[:, 1:] - cited + settings.margin)
        alike = torch.from_numpy(self._alike(queries, papers[:, :-1]))
        positive = torch.relu(drawn - mined + settings.margin)[alike]
        loss = torch.cat([negative.flatten(), positive]).mean()
        if settings.across:
            others = torch.relu(every - cited + settings.margin)
            loss = loss + others[torch.from_numpy(~self._right(queries, papers, distinct))].mean()
        return loss

    def _right(self, queries: Rows, papers: Rows, distinct: Rows) -> NDArray[np.bool_]:
        """Which of the batch's papers are no negatives of each query: its own ones, and what its bracket cites."""
        rows = zip(queries, papers, strict=True)
        return np.stack([np.isin(distinct, [*own, *self._answers(int(query))]) for query, own in rows])

    def _papers(self, row: int, query: int, rng: np.random.Generator) -> Rows:
        """The cited paper, mined ones, and one drawn from all papers."""
        drawn = rng.choice(self._candidates, self._settings.mined + 1)
        if row < len(self._mined):
            pool = self._mined[row][self._mined[row] >= 0]
            if len(pool):
                drawn[:-1] = rng.choice(pool, self._settings.mined, replace=len(pool) < self._settings.mined)
        return np.concatenate([[int(self._train.data.contexts.cited[query])], drawn])

    def _alike(self, queries: Rows, papers: Rows) -> NDArray[np.bool_]:
        """Whether each mined paper shares more words with its query than the cited paper (the first) does."""
        shared = np.zeros(papers.shape)
        for row, query in enumerate(queries):
            asked = self._texts.query_words(int(query))
            for column, paper in enumerate(papers[row]):
                shared[row, column] = _jaccard(asked, self._texts.paper_words(int(paper)))
        alike: NDArray[np.bool_] = shared[:, 1:] > shared[:, :1]
        return alike

    def _mine(self, number: int) -> None:
        """Draws the queries of the next steps and ranks papers for them by the current encoder."""
        settings, task, data = self._settings, self._train.task, self._train.data
        rng = np.random.default_rng((settings.seed, 2, number))
        self._queries = np.sort(rng.permutation(task.queries)[: settings.mined_queries])
        cited = np.unique(data.contexts.cited[self._queries])
        drawn = rng.permutation(self._candidates)[: settings.mined_papers]
        pool = np.union1d(drawn, rng.permutation(cited)[: settings.mined_papers])
        vectors = encoded(self.model, self._texts, pool, queries=False)
        self._mined = np.full((len(self._queries), settings.mined_depth), -1, np.int32)
        for start in range(0, len(self._queries), 512):
            some = self._queries[start : start + 512]
            scores = encoded(self.model, self._texts, some, queries=True) @ vectors.T
            for row, (eligible, query) in enumerate(zip(task.eligible(data, some), some, strict=True), start=start):
                barred = ~eligible[pool] | np.isin(pool, [*self._answers(int(query)), data.contexts.cited[query]])
                found = np.where(barred, -np.inf, scores[row - start])
                best = np.argpartition(-found, min(settings.mined_depth, len(found) - 1))[: settings.mined_depth]
                best = best[found[best] > -np.inf]
                self._mined[row, : len(best)] = pool[best]

    def validate(self) -> float:
        asked = encoded(self.model, self._texts, self._pool.queries, queries=True)
        return self._pool.mrr(asked @ encoded(self.model, self._texts, self._pool.papers, queries=False).T)

    def weights(self) -> State:
        # Copies: the tensors of a checkpoint must not change while training goes on.
        trained = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        return {"encoder": trained, "words": self._words.words, "vectors": self._vectors}

    def state(self) -> State:
        return {
            "optimisers": self._optimisers.state(),
            "mined": torch.from_numpy(self._mined),
            "queries": torch.from_numpy(self._queries),
        }

    def restore(self, weights: State, state: State) -> None:
        if weights["words"] != self._words.words:
            raise ValueError("the run was begun with other words: the data set or the file of word vectors changed")
        self.model.load_state_dict(weights["encoder"])
        self._optimisers.restore(state["optimisers"])
        self._mined, self._queries = state["mined"].numpy(), state["queries"].numpy()


class HAttenSystem:
    """Retrieval by the cosine of the vectors of query and paper."""

    name = "hatten"

    def __init__(self, settings: HAttenSettings, experiment: Experiment, weights: State) -> None:
        self._model = encoder(settings, weights["vectors"])
        self._model.load_state_dict(weights["encoder"])
        self._texts = HAttenTexts(experiment.data, Words(weights["words"]), settings)
        papers = np.arange(len(experiment.data.papers))
        self.papers = encoded(self._model, self._texts, papers, queries=False)

    def scores(self, queries: Rows) -> Vectors:
        found: Vectors = encoded(self._model, self._texts, queries, queries=True) @ self.papers.T
        return found


def encoder(settings: HAttenSettings, vectors: Tensor) -> HAttenEncoder:
    """A new encoder over these word vectors."""
    longest = max(settings.title_words, settings.abstract_words, settings.context_words)
    return HAttenEncoder(vectors, settings.heads, settings.inner, settings.dropout, longest)


def _jaccard(some: NDArray[np.int32], others: NDArray[np.int32]) -> float:
    both = len(np.intersect1d(some, others, assume_unique=True))
    both -= int(len(some) > 0 and len(others) > 0 and some[0] == PAD == others[0])
    either = np.count_nonzero(some) + np.count_nonzero(others) - both
    return both / either if either else 0.0


HATTEN: Rival[HAttenSettings, System] = Rival("hatten", "HAtten", HAttenSettings, HAttenLearner, HAttenSystem)
"""Deviations from the paper are settings: see deploy/docs/results/rivals.md."""
