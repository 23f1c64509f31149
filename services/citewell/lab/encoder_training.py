"""Fine-tunes ENC1: one encoder for papers, citing contexts and queries, so that eq. 3–5 stay as they are.

Each train query ranks what it cites before what the others of its batch cite, and before one of HYBRID's first
candidates of each. A cited paper is its title and abstract, or another context that cites it, as profiles are made of
both. Contexts are the few words around their markers, which also makes a step cheap. Other works of a query's bracket
are no negatives.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from citewell.lab.experiment import Experiment, OnProgress
from citewell.lab.hybrid_examples import train_lists
from citewell.lab.sentence_training import Ints, SentenceLearner, SentenceSettings, write_encoder
from citewell.lab.training import State
from citewell.profiler.encoder import GraphEncoder, load_encoder
from citewell.profiler.encoder_files import CONTEXTS


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSettings(SentenceSettings):
    """How ENC1 is fine-tuned."""

    batch: int = 40
    steps: int = 600
    seed: int = 17
    temperature: float = 0.05
    said_by_others: float = 0.4
    """Share of the cited papers that another citing context stands for, where there is one."""
    bare: float = 0.3
    """Share of the papers that are read without their abstract."""
    context_tokens: int = 64
    """Tokens read around a marker, the special ones included."""
    paper_tokens: int = 128
    """Tokens read of title and abstract."""
    learned_tokens: int = 96
    """Tokens of title and abstract in training, where fewer are enough."""
    validation_papers: int = 1000
    """Papers that the validation queries' cited papers are looked for among."""


class EncoderLearner(SentenceLearner):
    """A `training.Learner`."""

    def __init__(
        self,
        settings: EncoderSettings,
        experiment: Experiment,
        encoder: str,
        folder: Path,
        on_progress: OnProgress,
        lists_file: Path,
    ) -> None:
        """`encoder` is ENC1, `folder` its files. `experiment` asks validation queries.

        The candidate lists, the costly part, are kept in `lists_file`.
        """
        super().__init__(settings, experiment, folder)
        self._settings = settings
        self._contexts = load_encoder(encoder, max_tokens=settings.context_tokens)
        self._papers = load_encoder(encoder, max_tokens=settings.learned_tokens)
        self._lists = train_lists(self.train, settings.queries, settings.depth, settings.seed, on_progress, lists_file)
        self._right = self._lists.right(self.train.brackets.answers)
        contexts = self.train.data.contexts
        rows = self.train.known.contexts
        self._citing_rows = rows[np.argsort(contexts.cited[rows], kind="stable")]
        self._starts = np.searchsorted(contexts.cited[self._citing_rows], np.arange(len(self.train.data.papers) + 1))

    def batch(self, number: int) -> Ints:
        order, at, _ = self.epoch_of(number, len(self._lists))
        size = self._settings.batch
        return order[at * size : (at + 1) * size]

    def loss(self, rows: Ints, rng: np.random.Generator) -> Tensor:
        contexts = self.train.data.contexts
        queries = self._lists.queries[rows].astype(np.int64)
        cited = [int(paper) for paper in self._lists.gold[rows]]
        hard = [self._hard_negative(int(row), rng) for row in rows]
        texts = [self._said_of(paper, int(query), rng) for paper, query in zip(cited, queries, strict=True)]
        texts += [self._paper(paper, rng) for paper in hard]
        papers = np.array(cited + hard)
        asked = self.vectors(_tokens(self._contexts, [contexts.texts[int(query)] for query in queries]))
        scores = asked @ self.vectors(texts).T / self._settings.temperature
        answers = self.train.brackets.answers
        right = np.stack(
            [np.isin(papers, [paper, *answers(int(query))]) for paper, query in zip(cited, queries, strict=True)]
        )
        np.fill_diagonal(right, False)
        return nn.functional.cross_entropy(
            scores.masked_fill(torch.from_numpy(right), -torch.inf), torch.arange(len(rows))
        )

    def _said_of(self, paper: int, query: int, rng: np.random.Generator) -> list[int]:
        """The tokens of another citing paper's context, or of the paper itself."""
        contexts = self.train.data.contexts
        others = self._citing_rows[self._starts[paper] : self._starts[paper + 1]]
        others = others[contexts.citing[others] != contexts.citing[query]]
        if len(others) and rng.random() < self._settings.said_by_others:
            return _tokens(self._contexts, [contexts.texts[int(rng.choice(others))]])[0]
        return self._paper(paper, rng)

    def _paper(self, paper: int, rng: np.random.Generator) -> list[int]:
        papers = self.train.data.papers
        abstract = papers.abstracts[paper] if rng.random() >= self._settings.bare else ""
        return _tokens(self._papers, [self._papers.paper_text(papers.titles[paper], abstract)])[0]

    def _hard_negative(self, row: int, rng: np.random.Generator) -> int:
        """One of HYBRID's first candidates that is no right answer, or any paper where there is none."""
        listed = self._lists.papers[row]
        wrong = listed[(listed >= 0) & ~self._right[row]]
        return int(rng.choice(wrong)) if len(wrong) else int(rng.integers(len(self.train.data.papers)))

    def validate(self) -> float:
        """MRR in % of the cited papers by the cosine of context and paper, among these and random papers."""
        data, settings = self._validation.data, self._settings
        rng = np.random.default_rng(settings.seed)
        cited = data.contexts.cited[self._watched]
        among = np.union1d(
            cited, rng.permutation(np.flatnonzero(self._validation.task.candidates))[: settings.validation_papers]
        )
        texts = [
            self._papers.paper_text(data.papers.titles[int(row)], data.papers.abstracts[int(row)]) for row in among
        ]
        papers = self.encoded(_tokens(self._papers, texts))
        asked = self.encoded(_tokens(self._contexts, [data.contexts.texts[int(row)] for row in self._watched]))
        scores = asked @ papers.T
        own = scores[np.arange(len(scores)), np.searchsorted(among, cited)]
        return float(100 * np.mean(1 / (scores >= own[:, None]).sum(axis=1)))


def export_encoder(weights: State, encoder: str, settings: EncoderSettings, contexts: list[str], out: Path) -> None:
    """Writes the folder that CITEWELL_PROFILER__ENCODER names."""
    write_encoder(weights, encoder, contexts, out)
    told = {"max_seq_length": settings.paper_tokens, "do_lower_case": False}
    (out / "sentence_bert_config.json").write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    (out / CONTEXTS).write_text(json.dumps({"tokens": settings.context_tokens}) + "\n", "utf-8")


def mean_of(weights: State, start: State, share: float) -> State:
    """`share` of the trained weights and the rest of those that they started from."""
    return {
        name: share * tensor + (1 - share) * start[name] if tensor.is_floating_point() else tensor
        for name, tensor in weights.items()
    }


def _tokens(encoder: GraphEncoder, texts: list[str]) -> list[list[int]]:
    return [each.ids for each in encoder.tokenize(texts)]
