"""NNRank: ranks NNSelect's candidates by their probability of being cited."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from citewell.lab.dataset import Rows
from citewell.lab.experiment import Experiment, OnProgress
from citewell.lab.neighbours import Neighbours
from citewell.lab.reference_lists import rank, reference_lists, sampled_lists
from citewell.lab.rivals.citeomatic.networks import RankNetwork, metadata_fields, triplet_loss
from citewell.lab.rivals.citeomatic.select import AT_ONCE, Selection, select_network
from citewell.lab.rivals.citeomatic.texts import Texts, read_texts
from citewell.lab.rivals.citeomatic.triplets import Triplets, TripletSource
from citewell.lab.rivals.optimisers import Optimisers
from citewell.lab.rivals.rival import Rival
from citewell.lab.training import State, TrainingRun
from citewell.profiler.profiles import Vectors


@dataclass(frozen=True, slots=True)
class RankSettings:
    """The settings of NNRank; those that NNSelect has too mean the same."""

    select: str = ""
    """Folder of a run of NNSelect on the same data set."""
    words: int = 200_000
    least_count: int = 2
    dimension: int = 75
    metadata: bool = False
    """Read authors and venue too. The paper found that they favour self-citation."""
    metadata_dimension: int = 25
    dropout: float = 0.1
    margin: float = 1.0
    rate: float = 0.001
    drafts: int = 42
    per_draft: int = 6
    least_references: int = 2
    fetched: int = 100
    neighbours: int = 100
    validation_papers: int = 200
    seed: int = 0


@dataclass(frozen=True, slots=True)
class MetadataSettings(RankSettings):
    """The same with metadata."""

    metadata: bool = True


class Ranking:
    """Candidates by NNSelect, in the order of NNRank."""

    def __init__(self, experiment: Experiment, texts: Texts, selection: Selection, network: RankNetwork) -> None:
        self.name = "citeomatic"
        self._selection, self._texts, self._network = selection, texts, network
        self._neighbours = Neighbours(experiment)
        count = len(experiment.data.papers)
        self._in_citations = np.bincount(experiment.known.cited, minlength=count)
        with torch.no_grad():
            blocks = [
                network.vectors(texts, np.arange(start, min(start + AT_ONCE, count)))
                for start in range(0, count, AT_ONCE)
            ]
        self._fields = {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}

    def scores(self, papers: Rows) -> Vectors:
        cosines = self._selection.cosines(papers)
        scores = np.full_like(cosines, -np.inf)
        for row, paper in enumerate(papers.tolist()):
            found = self._selection.candidates(paper, cosines[row])
            citations = self._in_citations[found] - np.isin(found, self._neighbours.references(paper))
            drafts = np.full(len(found), paper, np.int64)
            with torch.no_grad():
                scores[row, found] = self._network.logits(
                    {name: field[found] @ field[paper] for name, field in self._fields.items()},
                    self._network.intersections(self._texts, drafts, found),
                    torch.from_numpy(cosines[row, found]),
                    torch.from_numpy(citations.astype(np.float32)),
                ).numpy()
        return scores


class RankLearner:
    """NNRank in training; NNSelect stays as it was trained."""

    def __init__(self, settings: RankSettings, experiment: Experiment, on_progress: OnProgress) -> None:
        if not settings.select:
            raise ValueError("select must name the folder of a run of nnselect: citewell train nnselect makes one")
        torch.manual_seed(settings.seed)
        self._settings, self._experiment = settings, experiment
        self.texts = read_texts(experiment.data, settings.words, settings.least_count, metadata=settings.metadata)
        self._select = TrainingRun(Path(settings.select)).weights()
        self._selection = Selection(
            experiment, self.texts, select_network(self.texts, self._select), settings.neighbours
        )
        self.fields = metadata_fields(self.texts, settings.metadata)
        self.network = RankNetwork(self.texts, settings.dimension, settings.metadata_dimension, self.fields)
        self.source = TripletSource(
            experiment, self.texts, settings.least_references, settings.per_draft, settings.fetched
        )
        self.source.mine(self._selection.cosines)
        lists = reference_lists(experiment.data, experiment.task)
        self._watched = sampled_lists(lists, settings.validation_papers, settings.seed)
        dense = list(self.network.forward_layers.parameters())
        sparse = [each for each in self.network.parameters() if all(each is not other for other in dense)]
        self._optimisers = Optimisers(
            torch.optim.SparseAdam(sparse, lr=settings.rate),
            torch.optim.Adam(dense, lr=settings.rate),
        )

    def step(self, number: int) -> float:
        rng = np.random.default_rng((self._settings.seed, number))
        drafts = rng.integers(len(self.source.lists), size=self._settings.drafts)
        return self._optimisers.step(self.loss(self.source.draw(drafts, rng), rng))

    def loss(self, triplets: Triplets, rng: np.random.Generator) -> Tensor:
        """The loss of some triplets; each paper's fields are embedded once."""
        papers, at = np.unique(np.concatenate([triplets.draft, triplets.right, triplets.wrong]), return_inverse=True)
        fields = self.network.vectors(self.texts, papers, self._settings.dropout, rng)
        draft, *others = (torch.from_numpy(part) for part in np.split(at, 3))
        citations = (torch.from_numpy(triplets.right_citations), torch.from_numpy(triplets.wrong_citations))
        scored = []
        for other, rows, counts in zip(others, (triplets.right, triplets.wrong), citations, strict=True):
            select = np.einsum("nd,nd->n", self._selection.vectors[triplets.draft], self._selection.vectors[rows])
            logits = self.network.logits(
                {name: (field[draft] * field[other]).sum(dim=1) for name, field in fields.items()},
                self.network.intersections(self.texts, triplets.draft, rows),
                torch.from_numpy(select),
                counts,
            )
            scored.append(torch.sigmoid(logits))
        margins = self._settings.margin * torch.from_numpy(triplets.margin)
        return triplet_loss(scored[0], scored[1], margins, *citations)

    def validate(self) -> float:
        system = Ranking(self._experiment, self.texts, self._selection, self.network)
        return 100.0 * float(rank(system, self._experiment, self._watched).values()["MRR"].mean())

    def weights(self) -> State:
        return {"select": self._select, "rank": self.network.state_dict()}

    def state(self) -> State:
        return {"optimisers": self._optimisers.state()}

    def restore(self, weights: State, state: State) -> None:
        self.network.load_state_dict(weights["rank"])
        self._optimisers.restore(state["optimisers"])


def load(settings: RankSettings, experiment: Experiment, weights: State) -> Ranking:
    """The trained system."""
    texts = read_texts(experiment.data, settings.words, settings.least_count, metadata=settings.metadata)
    selection = Selection(experiment, texts, select_network(texts, weights["select"]), settings.neighbours)
    fields = metadata_fields(texts, settings.metadata)
    network = RankNetwork(texts, settings.dimension, settings.metadata_dimension, fields)
    network.load_state_dict(weights["rank"])
    return Ranking(experiment, texts, selection, network)


CITEOMATIC = Rival("citeomatic", "Citeomatic: NNSelect + NNRank", RankSettings, RankLearner, load)
CITEOMATIC_METADATA = Rival(
    "citeomatic-metadata", "Citeomatic: NNSelect + NNRank + metadata", MetadataSettings, RankLearner, load
)
