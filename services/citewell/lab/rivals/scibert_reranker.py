"""The reranker of hatten-scibert §4.2: a cross-encoder with one linear layer, over any encoder.

`[CLS] T ⊕ A ⊕ S [SEP] T_c ⊕ A_c`; the score is the sigmoid of a linear layer over the state of [CLS]. The paper starts
from SciBERT; the packaged MiniLM is the default here, since it needs no download.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import processors
from torch import Tensor, nn

from citewell.lab.brackets import Brackets
from citewell.lab.dataset import Dataset, Rows
from citewell.lab.davinci.lists import CandidateLists, NegativeSampling
from citewell.lab.davinci.model import load_encoder
from citewell.lab.davinci.retrieve import candidate_lists
from citewell.lab.experiment import Experiment, OnProgress
from citewell.lab.metrics import means
from citewell.lab.pretrained import freeze_word_embeddings, read_tokenizer
from citewell.lab.rivals.optimisers import Optimisers
from citewell.lab.rivals.query_texts import nearest_words
from citewell.lab.rivals.rival import ListReranker, Rival
from citewell.lab.sampling import sampled
from citewell.lab.systems_by_name import SYSTEMS
from citewell.lab.training import State

_PAIRS = 32
"""Pairs of one forward pass when scoring."""


@dataclass(frozen=True, slots=True)
class RerankerSettings:
    """The published settings are the defaults, but for the encoder, the candidates, and the lengths of texts."""

    encoder: str = "minilm"
    """ "minilm" (from its Python package), a folder, or a Hugging Face id ("allenai/scibert_scivocab_uncased")."""
    candidates: str = "hybrid"
    """Which of the lab's systems retrieves the train queries' lists."""
    depth: int = 2000
    negatives: int = 62
    queries: int = 1
    """Queries of one step; the loss is the mean over them."""
    margin: float = 0.1
    rate: float = 1e-5
    decay: float = 1e-2
    train_queries: int = 10_000
    validation_queries: int = 40
    validation_depth: int = 50
    abstract_words: int = 120
    """Of the citing paper, and of the candidate: what is longer is cut, so that the context is never cut off."""
    context_words: int = 100
    """Those nearest to the place of the missing citation."""
    longest: int = 512
    """Tokens of a pair; the longer side is cut."""
    freeze_words: bool = True
    """Do not train the word embeddings."""
    seed: int = 13


class CrossEncoder(nn.Module):
    """An encoder and a linear layer over the state of its first token."""

    def __init__(self, encoder: nn.Module, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        config: Any = encoder.config
        self.encoder = encoder
        self.out = nn.Linear(config.hidden_size, 1)

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        """A score between 0 and 1 of each pair."""
        with torch.autocast("cpu", torch.bfloat16):
            states = self.encoder(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state
        return torch.sigmoid(self.out(states[:, 0].float())).squeeze(-1)


class Pairs:
    """The texts of pairs as token numbers."""

    def __init__(self, data: Dataset, settings: RerankerSettings) -> None:
        self._tokenizer = read_tokenizer(settings.encoder)
        marks = [(mark, self._tokenizer.token_to_id(mark)) for mark in ("[CLS]", "[SEP]")]
        if all(number is not None for _, number in marks):  # other families bring their own marks
            self._tokenizer.post_processor = processors.TemplateProcessing(
                single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=marks
            )
        self._tokenizer.enable_truncation(settings.longest, strategy="longest_first")
        self._tokenizer.enable_padding()
        self._data, self._settings = data, settings

    def query(self, row: int) -> str:
        """T ⊕ A ⊕ S of a context."""
        contexts = self._data.contexts
        said = nearest_words(contexts.texts[row], self._settings.context_words)
        return f"{self.paper(int(contexts.citing[row]))} {said}"

    def paper(self, row: int) -> str:
        """T ⊕ A of a paper."""
        papers = self._data.papers
        return f"{papers.titles[row]} {' '.join(papers.abstracts[row].split()[: self._settings.abstract_words])}"

    def of(self, *lists: tuple[int, Rows]) -> tuple[Tensor, Tensor, Tensor]:
        """Token numbers, mask and token types of each query with each of its papers, in this order."""
        asked = [(self.query(query), papers) for query, papers in lists]
        made = self._tokenizer.encode_batch([(text, self.paper(int(one))) for text, papers in asked for one in papers])
        return (
            torch.tensor([each.ids for each in made]),
            torch.tensor([each.attention_mask for each in made]),
            torch.tensor([each.type_ids for each in made]),
        )


class CrossEncoderReranker:
    """Orders candidates by the model's score."""

    name = "scibert-reranker"

    def __init__(self, model: CrossEncoder, pairs: Pairs) -> None:
        self._model, self._pairs = model, pairs

    def scores(self, lists: CandidateLists) -> NDArray[np.float32]:
        self._model.eval()
        found = np.full(lists.papers.shape, -np.inf, np.float32)
        with torch.inference_mode():
            for row, query in enumerate(lists.queries.tolist()):
                papers = lists.papers[row][lists.papers[row] >= 0]
                for start in range(0, len(papers), _PAIRS):
                    some = self._model(*self._pairs.of((query, papers[start : start + _PAIRS])))
                    found[row, start : start + len(some)] = some.numpy()
        return found


class RerankerLearner:
    """The cited paper of a query against papers drawn from its list, which its bracket does not cite."""

    def __init__(self, settings: RerankerSettings, experiment: Experiment, on_progress: OnProgress) -> None:
        self._settings = settings
        self._pairs = Pairs(experiment.data, settings)
        self.model = new_model(settings)
        trained = [each for each in self.model.parameters() if each.requires_grad]
        self._optimisers = Optimisers(torch.optim.AdamW(trained, lr=settings.rate, weight_decay=settings.decay))
        self._answers = Brackets(experiment.data).answers
        train, validation = experiment.of_split("train"), experiment.of_split("validation")
        learned = sampled(train.task.queries, settings.train_queries, settings.seed)
        lists = candidate_lists(SYSTEMS[settings.candidates](train), train, learned, settings.depth, on_progress)
        self.lists = lists.take(np.flatnonzero((lists.papers >= 0).sum(axis=1) > settings.negatives))
        watched = sampled(validation.task.queries, settings.validation_queries, settings.seed)
        system = SYSTEMS[settings.candidates](validation)
        self._watched = candidate_lists(system, validation, watched, settings.validation_depth, on_progress)
        if not len(self.lists):
            raise ValueError(f"no train query has more than {settings.negatives} candidates: lower `negatives`")

    def step(self, number: int) -> float:
        torch.manual_seed(self._settings.seed * 1_000_003 + number)
        rng = np.random.default_rng((self._settings.seed, 1, number))
        rows = rng.integers(len(self.lists), size=self._settings.queries)
        return self._optimisers.step(self.loss(rows, rng))

    def loss(self, rows: Rows, rng: np.random.Generator) -> Tensor:
        """The mean hinge of the negatives of each query, and its mean over the queries."""
        pairs = [self.drawn(int(row), rng) for row in rows]
        self.model.train()
        scores: Tensor = self.model(*self._pairs.of(*pairs))
        each = torch.split(scores, [len(papers) for _, papers in pairs])
        return torch.stack([torch.relu(own[1:] - own[0] + self._settings.margin).mean() for own in each]).mean()

    def drawn(self, row: int, rng: np.random.Generator) -> tuple[int, Rows]:
        """A query with its cited paper and negatives, the cited paper first."""
        query = int(self.lists.queries[row])
        sampling = NegativeSampling(count=self._settings.negatives)
        negatives = sampling.draw(self.lists, row, rng, self._answers(query).astype(np.int32))
        return query, np.concatenate([self.lists.gold[row : row + 1], negatives]).astype(np.int64)

    def validate(self) -> float:
        order = CrossEncoderReranker(self.model, self._pairs).scores(self._watched)
        return means(self._watched.ranks(order), ["MRR"])["MRR"]

    def weights(self) -> State:
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    def state(self) -> State:
        return {"optimisers": self._optimisers.state()}

    def restore(self, weights: State, state: State) -> None:
        self.model.load_state_dict(weights)
        self._optimisers.restore(state["optimisers"])


def new_model(settings: RerankerSettings) -> CrossEncoder:
    """The encoder with a new linear layer."""
    model = CrossEncoder(load_encoder(settings.encoder), settings.seed)
    if settings.freeze_words:
        freeze_word_embeddings(model)
    return model


def load(settings: RerankerSettings, experiment: Experiment, weights: State) -> ListReranker:
    """The trained reranker."""
    model = new_model(settings)
    model.load_state_dict(weights)
    return CrossEncoderReranker(model, Pairs(experiment.data, settings))


SCIBERT_RERANKER: Rival[RerankerSettings, ListReranker] = Rival(
    "scibert-reranker", "HAtten's reranker", RerankerSettings, RerankerLearner, load
)
