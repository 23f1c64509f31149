"""NNSelect: learns vectors of papers, and finds the papers nearest to a draft and what those cite."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from citewell.lab.dataset import Rows
from citewell.lab.experiment import Experiment, OnProgress
from citewell.lab.neighbours import Neighbours
from citewell.lab.reference_lists import rank, reference_lists, sampled_lists
from citewell.lab.rivals.citeomatic.networks import SelectNetwork, triplet_loss
from citewell.lab.rivals.citeomatic.texts import Texts, read_texts
from citewell.lab.rivals.citeomatic.triplets import Triplets, TripletSource
from citewell.lab.rivals.optimisers import Optimisers
from citewell.lab.rivals.rival import Rival
from citewell.lab.training import State
from citewell.profiler.profiles import Vectors

AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class SelectSettings:
    """The settings of NNSelect, set by hand and not searched. The paper's own differ by data set (tables 6 to 9)."""

    words: int = 200_000
    """The most words of the vocabulary."""
    least_count: int = 2
    """In how many papers a word must stand."""
    dimension: int = 100
    dropout: float = 0.5
    """Of words."""
    margin: float = 1.0
    """γ, the margin multiplier."""
    rate: float = 0.01
    drafts: int = 42
    """Of one step; each gives six triplets, so a batch has the paper's 256."""
    per_draft: int = 6
    least_references: int = 2
    fetched: int = 100
    """Nearest neighbours that negatives are chosen among."""
    mine_every: int = 500
    """Steps between two minings of neighbours."""
    neighbours: int = 100
    """K, the nearest neighbours of a draft that become candidates, with what they cite."""
    validation_papers: int = 200
    seed: int = 0


class Selection:
    """The trained vectors of all papers, and the candidates of a draft."""

    def __init__(self, experiment: Experiment, texts: Texts, network: SelectNetwork, neighbours: int) -> None:
        self.name = "nnselect"
        self.vectors = embedded(network, texts, len(experiment.data.papers))
        self._neighbours, self._count = Neighbours(experiment), neighbours

    def candidates(self, paper: int, cosines: NDArray[np.float32]) -> Rows:
        """The nearest neighbours and the papers they cite."""
        nearest = self._neighbours.nearest(paper, cosines, self._count)
        return np.union1d(nearest, self._neighbours.cited_by(nearest)[0])

    def cosines(self, papers: Rows) -> Vectors:
        """[drafts, papers]."""
        found: Vectors = self.vectors[papers] @ self.vectors.T
        return found

    def scores(self, papers: Rows) -> Vectors:
        cosines = self.cosines(papers)
        scores = np.full_like(cosines, -np.inf)
        for row, paper in enumerate(papers.tolist()):
            found = self.candidates(paper, cosines[row])
            scores[row, found] = cosines[row, found]
        return scores


def embedded(network: SelectNetwork, texts: Texts, count: int) -> Vectors:
    """The vectors of all papers."""
    with torch.no_grad():
        parts = [
            network(texts, np.arange(start, min(start + AT_ONCE, count))).numpy() for start in range(0, count, AT_ONCE)
        ]
    return np.concatenate(parts)


class SelectLearner:
    """NNSelect in training."""

    def __init__(self, settings: SelectSettings, experiment: Experiment, on_progress: OnProgress) -> None:
        torch.manual_seed(settings.seed)
        self._settings, self._experiment = settings, experiment
        self.texts = read_texts(experiment.data, settings.words, settings.least_count, metadata=False)
        self.network = SelectNetwork(len(self.texts.vocabulary), settings.dimension)
        self.source = TripletSource(
            experiment, self.texts, settings.least_references, settings.per_draft, settings.fetched
        )
        lists = reference_lists(experiment.data, experiment.task)
        self._watched = sampled_lists(lists, settings.validation_papers, settings.seed)
        sparse = list(self.network.words.parameters())
        self._optimisers = Optimisers(
            torch.optim.SparseAdam(sparse, lr=settings.rate),
            torch.optim.Adam([self.network.weights], lr=settings.rate),
        )

    def step(self, number: int) -> float:
        settings, rng = self._settings, np.random.default_rng((self._settings.seed, number))
        if number % settings.mine_every == 0:
            self._mine()
        drafts = rng.integers(len(self.source.lists), size=settings.drafts)
        return self._optimisers.step(self.loss(self.source.draw(drafts, rng), rng))

    def loss(self, triplets: Triplets, rng: np.random.Generator) -> torch.Tensor:
        """The loss of some triplets; each paper is embedded once."""
        papers, at = np.unique(np.concatenate([triplets.draft, triplets.right, triplets.wrong]), return_inverse=True)
        vectors = self.network(self.texts, papers, self._settings.dropout, rng)
        draft, right, wrong = (vectors[torch.from_numpy(part)] for part in np.split(at, 3))
        return triplet_loss(
            (draft * right).sum(dim=1),
            (draft * wrong).sum(dim=1),
            self._settings.margin * torch.from_numpy(triplets.margin),
            torch.from_numpy(triplets.right_citations),
            torch.from_numpy(triplets.wrong_citations),
        )

    def _mine(self) -> None:
        vectors = embedded(self.network, self.texts, len(self._experiment.data.papers))
        self.source.mine(lambda papers: vectors[papers] @ vectors.T)

    def validate(self) -> float:
        system = Selection(self._experiment, self.texts, self.network, self._settings.neighbours)
        return 100.0 * float(rank(system, self._experiment, self._watched).values()["MRR"].mean())

    def weights(self) -> State:
        return self.network.state_dict()

    def state(self) -> State:
        return {
            "optimisers": self._optimisers.state(),
            "nearest": [torch.from_numpy(each) for each in self.source.nearest],
        }

    def restore(self, weights: State, state: State) -> None:
        self.network.load_state_dict(weights)
        self._optimisers.restore(state["optimisers"])
        self.source.nearest = [each.numpy() for each in state["nearest"]]


def select_network(texts: Texts, weights: State) -> SelectNetwork:
    """A trained network."""
    words, dimension = weights["words.direction.weight"].shape
    if words != len(texts.vocabulary):
        known = len(texts.vocabulary)
        raise ValueError(f"NNSelect was trained with {words} words; this data set and its settings give {known}")
    network = SelectNetwork(words, dimension)
    network.load_state_dict(weights)
    return network


def load(settings: SelectSettings, experiment: Experiment, weights: State) -> Selection:
    """The trained system."""
    texts = read_texts(experiment.data, settings.words, settings.least_count, metadata=False)
    return Selection(experiment, texts, select_network(texts, weights), settings.neighbours)


NNSELECT = Rival("nnselect", "Citeomatic: NNSelect", SelectSettings, SelectLearner, load)
