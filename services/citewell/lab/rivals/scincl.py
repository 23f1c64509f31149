"""SciNCL's recipe: an encoder of titles and abstracts that learns neighbourhoods of the citation graph.

The published one starts from SciBERT and reads 52 million papers; the packaged MiniLM and the set's train citations
are the defaults here. The graph's embedding is spectral, where the authors trained PyTorch-BigGraph.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModel

from citewell.lab.dataset import Dataset, Rows
from citewell.lab.experiment import Experiment, OnProgress
from citewell.lab.pretrained import freeze_word_embeddings, loading_quietly, read_tokenizer, weights_of
from citewell.lab.rivals.citation_neighbours import Bands, CitationNeighbours
from citewell.lab.rivals.optimisers import Optimisers
from citewell.lab.rivals.query_texts import nearest_words
from citewell.lab.rivals.rival import Rival
from citewell.lab.rivals.validation import ValidationPool
from citewell.lab.systems import System
from citewell.lab.training import State
from citewell.profiler.profiles import Vectors

_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class ScinclSettings:
    """The published settings are the defaults, but for the encoder, its pooling, the lengths of texts and the batch."""

    encoder: str = "minilm"
    """ "minilm" (from its Python package), a folder, or a Hugging Face id ("allenai/scibert_scivocab_uncased")."""
    pooling: str = "mean"
    """ "mean", as MiniLM was trained, or "cls", as published for SciBERT."""
    dimensions: int = 128
    """Of the graph's embedding (768 in the paper)."""
    positives: tuple[int, int] = (21, 25)
    hard: tuple[int, int] = (3999, 4000)
    easy: int = 3
    queries: int = 4
    """Papers of one step that triplets are drawn for; each gives five (32 triplets a step in the paper)."""
    margin: float = 1.0
    rate: float = 2e-5
    decay: float = 0.01
    longest: int = 128
    """Tokens of a text (512 in the paper)."""
    context_words: int = 60
    """Of a citation context that is the query, those nearest to the marker."""
    context: float = 1.0
    """The weight of the context in the query."""
    paper: float = 0.0
    """The weight of the citing paper's title and abstract in the query."""
    freeze_words: bool = True
    """Do not train the word embeddings."""
    validation_queries: int = 100
    validation_papers: int = 500
    seed: int = 13

    @property
    def bands(self) -> Bands:
        return Bands(self.positives, self.hard, self.easy)


class TextEncoder(nn.Module):
    """A pretrained encoder with its tokeniser and pooling."""

    def __init__(self, settings: ScinclSettings) -> None:
        super().__init__()
        if settings.pooling not in ("mean", "cls"):
            raise ValueError(f"pooling is mean or cls, got {settings.pooling!r}")
        self._tokenizer = read_tokenizer(settings.encoder)
        self._tokenizer.enable_truncation(settings.longest)
        self._tokenizer.enable_padding()
        self._mean = settings.pooling == "mean"
        name = weights_of(settings.encoder)
        with loading_quietly():
            self.encoder = AutoModel.from_pretrained(name, dtype=torch.float32, add_pooling_layer=False)
        if settings.freeze_words:
            freeze_word_embeddings(self.encoder)

    def forward(self, texts: list[str]) -> Tensor:
        """The vector of each text."""
        made = self._tokenizer.encode_batch(texts)
        mask = torch.tensor([each.attention_mask for each in made])
        with torch.autocast("cpu", torch.bfloat16):
            states: Tensor = self.encoder(torch.tensor([each.ids for each in made]), mask).last_hidden_state.float()
        if not self._mean:
            return states[:, 0]
        weights = mask[:, :, None].float()
        mean: Tensor = (states * weights).sum(dim=1) / weights.sum(dim=1)
        return mean

    def encoded(self, texts: list[str]) -> Vectors:
        """The vectors of many texts; those of similar length are computed together."""
        self.eval()
        order = np.argsort([len(text) for text in texts], kind="stable")
        found: list[NDArray[np.float32]] = []
        with torch.inference_mode():
            for start in range(0, len(texts), _AT_ONCE):
                found.append(self([texts[at] for at in order[start : start + _AT_ONCE]]).numpy())
        out: Vectors = np.empty((len(texts), found[0].shape[1]), np.float32)
        out[order] = np.concatenate(found)
        return out


class Texts:
    """Title [SEP] abstract of papers, and the contexts around their markers."""

    def __init__(self, data: Dataset, settings: ScinclSettings) -> None:
        self._data, self._words = data, settings.context_words

    def papers(self, rows: Rows) -> list[str]:
        papers = self._data.papers
        return [f"{papers.titles[row]} [SEP] {papers.abstracts[row]}" for row in rows.tolist()]

    def contexts(self, rows: Rows) -> list[str]:
        return [nearest_words(self._data.contexts.texts[row], self._words) for row in rows.tolist()]


class ScinclSystem:
    """The papers nearest to a query by Euclidean distance, as in training."""

    name = "scincl"

    def __init__(self, settings: ScinclSettings, data: Dataset, encoder: TextEncoder, papers: Rows) -> None:
        """`papers` are those that it ranks."""
        self._settings, self._data, self._encoder = settings, data, encoder
        self._texts = Texts(data, settings)
        self._papers = encoder.encoded(self._texts.papers(papers))
        self._lengths = (self._papers**2).sum(axis=1)

    def scores(self, queries: Rows) -> Vectors:
        asked: Vectors = np.float32(self._settings.context) * self._encoder.encoded(self._texts.contexts(queries))
        if self._settings.paper:
            citing = self._data.contexts.citing[queries].astype(np.int64)
            asked += np.float32(self._settings.paper) * self._encoder.encoded(self._texts.papers(citing))
        found: Vectors = 2 * asked @ self._papers.T - self._lengths  # the query's own length changes no order
        return found


class ScinclLearner:
    """Triplet training."""

    def __init__(self, settings: ScinclSettings, experiment: Experiment, on_progress: OnProgress) -> None:
        on_progress("embedding of the citation graph", 0, 1)
        self._settings, self._data = settings, experiment.data
        self.graph = CitationNeighbours(experiment.data, experiment.known, settings.dimensions, settings.seed)
        on_progress("embedding of the citation graph", 1, 1)
        torch.manual_seed(settings.seed)
        self.model = TextEncoder(settings)
        self._texts = Texts(experiment.data, settings)
        trained = [each for each in self.model.parameters() if each.requires_grad]
        self._optimisers = Optimisers(torch.optim.AdamW(trained, lr=settings.rate, weight_decay=settings.decay))
        task = experiment.of_split("validation").task
        self._pool = ValidationPool(
            experiment.data, task, settings.validation_queries, settings.validation_papers, settings.seed
        )

    def step(self, number: int) -> float:
        torch.manual_seed(self._settings.seed * 1_000_003 + number)
        rng = np.random.default_rng((self._settings.seed, number))
        nodes = rng.integers(len(self.graph.papers), size=self._settings.queries).tolist()
        found = [self.graph.triplets(node, self._settings.bands, rng) for node in nodes]
        return self._optimisers.step(self.loss(np.concatenate(found)))

    def loss(self, triplets: NDArray[np.int64]) -> Tensor:
        """The mean hinge of distances; each paper is encoded once."""
        self.model.train()
        papers, at = np.unique(triplets, return_inverse=True)
        vectors: Tensor = self.model(self._texts.papers(papers))
        query, positive, negative = vectors[torch.from_numpy(at.reshape(triplets.shape))].unbind(dim=1)
        return nn.functional.triplet_margin_loss(query, positive, negative, margin=self._settings.margin)

    def validate(self) -> float:
        system = ScinclSystem(self._settings, self._data, self.model, self._pool.papers)
        return self._pool.mrr(system.scores(self._pool.queries))

    def weights(self) -> State:
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    def state(self) -> State:
        return {"optimisers": self._optimisers.state()}

    def restore(self, weights: State, state: State) -> None:
        self.model.load_state_dict(weights)
        self._optimisers.restore(state["optimisers"])


def load(settings: ScinclSettings, experiment: Experiment, weights: State) -> System:
    """The trained encoder with the vectors of all papers."""
    model = TextEncoder(settings)
    model.load_state_dict(weights)
    return ScinclSystem(settings, experiment.data, model, np.arange(len(experiment.data.papers)))


SCINCL = Rival("scincl", "SciNCL's recipe", ScinclSettings, ScinclLearner, load)
