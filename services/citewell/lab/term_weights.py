"""Learns the weights of a query's words: which words near the marker tell the cited paper, by what the text shows.

Each train query ranks its cited paper before candidates of HYBRID, by HYBRID's score with the words weighed anew. The
citations of the query's own paper are left out of profiles and bags of words. Queries whose cited paper HYBRID does not
find are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from citewell.lab import chosen
from citewell.lab.dataset import Rows
from citewell.lab.experiment import Experiment, OnProgress
from citewell.lab.metrics import means
from citewell.lab.retrieval import BLOCK, search
from citewell.lab.sampling import sampled
from citewell.lab.second_phase.system import FirstPhase, Listed
from citewell.profiler.lexical import query_terms
from citewell.profiler.term_weights import (
    LARGEST,
    OFF,
    PACKAGED,
    LearnedWeights,
    Numbers,
    find_term_weights,
    read_term_weights,
    term_weights_text,
)
from citewell.profiler.word_features import FEATURES, word_features
from citewell.scholarly.contexts import normalise
from citewell.scholarly.lexical import NO_TERMS, LexicalQuery, saturated

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
TRAINED = "trained"
"""Names the weights just learned, beside the settings "none" and "packaged"."""


@dataclass(frozen=True, slots=True)
class WeightSettings:
    """How the weights are learned."""

    queries: int = 8000
    """The most contexts of the train split that are used, drawn with a seed."""
    first: int = 64
    """Candidates of a query: the first ones of HYBRID."""
    others: int = 48
    """Candidates of a query: drawn from the following ones, to the thousandth."""
    correction: float = 0.5
    """How far the loss counts a drawn candidate for those that were not drawn: 0 = as one, 1 = as all of them."""
    kept: float = 0.6
    """Share of the weight that the words keep from the rule without learning; without it R@300 falls on acl."""
    batch: int = 64
    epochs: int = 4
    learning_rate: float = 1e-2
    decay: float = 1e-4
    temperature: float = 0.1
    """At the start; it is learned too."""
    validation_queries: int = 1000
    seed: int = 13


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """One query, its cited paper as the first of its candidates."""

    values: Floats
    """[terms]: the weights of the words without learning."""
    features: Floats
    """[terms, features]."""
    cosine: Floats
    """[candidates]."""
    log_weights: Floats
    """[candidates]: added to the logits of drawn candidates, which stand for several."""
    candidate: Ints
    """Of each word that a candidate shares with the query: the candidate."""
    term: Ints
    saturated: Floats


@dataclass(frozen=True, slots=True)
class Learned:
    """Weights, and what HYBRID reaches on validation without any, with those that ship, and with these."""

    weights: LearnedWeights
    text: str
    """The file's."""
    without: dict[str, float]
    packaged: dict[str, float]
    trained: dict[str, float]

    @property
    def best(self) -> str:
        """The setting worth having: the highest MRR, where R@300 is no lower than without weights."""
        figures = {OFF: self.without, PACKAGED: self.packaged, TRAINED: self.trained}
        usable = [name for name, each in figures.items() if each["R@300"] >= self.without["R@300"]]
        return max(usable, key=lambda name: figures[name]["MRR"])


def learn(experiment: Experiment, settings: WeightSettings, on_progress: OnProgress, card: dict[str, Any]) -> Learned:
    """Weights learned on the train split; `experiment` asks validation queries."""
    plain = replace(experiment, term_weights=None)
    made = examples(plain.of_split("train"), settings, on_progress)
    if not made:
        raise ValueError("HYBRID finds the cited paper of no train query: nothing to learn from")
    text = term_weights_text(fit(made, settings, on_progress), settings.kept, card | {"contexts": len(made)})
    weights = read_term_weights(text)
    compared = (None, find_term_weights(PACKAGED), weights)
    return Learned(weights, text, *(validated(replace(plain, term_weights=each), settings) for each in compared))


def examples(train: Experiment, settings: WeightSettings, on_progress: OnProgress) -> list[Example]:
    """A sample of the train queries whose cited paper HYBRID finds."""
    queries = sampled(train.task.queries, settings.queries, settings.seed)
    # Block by block, so that the queries of one paper share the work of leaving that paper out.
    queries = queries[np.lexsort((queries, train.data.contexts.citing[queries]))]
    first, rng, made = FirstPhase(train), np.random.default_rng(settings.seed), list[Example]()
    for start in range(0, len(queries), BLOCK):
        block = queries[start : start + BLOCK]
        for query, listed in zip(block.tolist(), first.lists(block, *first.scores(block)), strict=True):
            places, log_weights = _drawn(train, query, listed.papers, settings, rng)
            if len(places):
                made.append(_example(train, first, query, listed, places, log_weights))
        on_progress("term weights, train queries", min(start + BLOCK, len(queries)), len(queries))
    return made


def _drawn(
    train: Experiment, query: int, papers: Rows, settings: WeightSettings, rng: np.random.Generator
) -> tuple[Ints, Floats]:
    """The places of a query's candidates in HYBRID's list, and their `log_weights`; none if it has no cited paper."""
    gold = np.flatnonzero(papers == train.data.contexts.cited[query])
    if not len(gold):
        return gold, np.zeros(0, np.float32)
    others = np.delete(np.arange(len(papers)), gold)
    others = others[~np.isin(papers[others], train.brackets.answers(query))]
    beyond = others[settings.first :]
    drawn = rng.permutation(beyond)[: settings.others]
    places = np.concatenate([gold, others[: settings.first], drawn])
    log_weights = np.zeros(len(places), np.float32)
    if len(drawn):
        log_weights[-len(drawn) :] = settings.correction * np.log(len(beyond) / len(drawn))
    return places, log_weights


def _example(
    train: Experiment, first: FirstPhase, query: int, listed: Listed, places: Ints, log_weights: Floats
) -> Example:
    contexts, papers = train.data.contexts, train.data.papers
    citing = int(contexts.citing[query])
    context, title, abstract = (
        normalise(text) for text in (contexts.texts[query], papers.titles[citing], papers.abstracts[citing])
    )
    _, values = first.words.word_values(query)
    found, words = listed.candidates, listed.candidates.words
    place = np.full(len(listed.papers), -1, np.int64)
    place[places] = np.arange(len(places))
    kept = place[words.candidate] >= 0
    bm25 = LexicalQuery(NO_TERMS, 1.0, chosen.BM25.k1, chosen.BM25.b, first.mean_length)
    return Example(
        values.astype(np.float32),
        word_features(context, title, query_terms(context, title, abstract, chosen.TERMS)).astype(np.float32),
        found.cosine[places].astype(np.float32),
        log_weights,
        place[words.candidate[kept]],
        words.term[kept],
        saturated(words.count[kept], found.length[words.candidate[kept]], bm25).astype(np.float32),
    )


def fit(made: Sequence[Example], settings: WeightSettings, on_progress: OnProgress) -> Numbers:
    """[features]: weights for raw features."""
    torch.manual_seed(settings.seed)
    rng = np.random.default_rng(settings.seed)
    every = np.concatenate([each.features for each in made])
    spread = every.std(axis=0) + 1e-3  # the mean cancels out, as the words' weights sum to 1
    weights = nn.Parameter(torch.zeros(len(FEATURES)))
    temperature = nn.Parameter(torch.tensor(float(np.log(settings.temperature))))
    optimizer = torch.optim.Adam([weights, temperature], betas=(0.9, 0.98))
    size = min(settings.batch, len(made))
    total, step = settings.epochs * (len(made) // size), 0
    while step < total:
        order = rng.permutation(len(made))
        for start in range(0, len(order) - size + 1, size):
            rate = settings.learning_rate * min(1.0, (step + 1) / 20) * max(0.02, 1 - step / total)
            for group in optimizer.param_groups:
                group["lr"] = rate
            batch = [made[at] for at in order[start : start + size]]
            scores = batch_scores(batch, weights / torch.from_numpy(spread), settings.kept)
            logits = scores / torch.exp(temperature) + _padded([each.log_weights for each in batch], -torch.inf)
            loss = nn.functional.cross_entropy(logits, torch.zeros(size, dtype=torch.long))
            optimizer.zero_grad()
            torch.autograd.backward(loss + settings.decay * (weights * weights).sum())
            optimizer.step()
            step += 1
            on_progress("term weights, steps", step, total)
    return np.asarray(weights.detach().numpy() / spread, np.float64)


def batch_scores(batch: Sequence[Example], weights: Tensor, kept: float) -> Tensor:
    """[queries, candidates]: HYBRID's score with the words weighed anew; 0 beyond the end of a list."""
    sizes = np.array([len(each.values) for each in batch])
    width = max(len(each.cosine) for each in batch)
    query = torch.from_numpy(np.repeat(np.arange(len(batch)), sizes))
    values = torch.from_numpy(np.concatenate([each.values for each in batch]))
    features = torch.from_numpy(np.concatenate([each.features for each in batch]))
    factored = values * torch.exp((features @ weights).clamp(-LARGEST, LARGEST))
    sums = torch.zeros(len(batch)).index_add(0, query, factored)
    words = kept * values + (1 - kept) * factored / sums.clamp(min=1e-9)[query]
    starts = np.cumsum([0, *sizes[:-1]])
    term = np.concatenate([each.term + start for each, start in zip(batch, starts, strict=True)])
    place = np.concatenate([each.candidate + row * width for row, each in enumerate(batch)])
    added = words[torch.from_numpy(term)] * torch.from_numpy(np.concatenate([each.saturated for each in batch]))
    lexical = torch.zeros(len(batch) * width).index_add(0, torch.from_numpy(place), added)
    return _padded([each.cosine for each in batch], 0.0) + chosen.LEXICAL * lexical.view(len(batch), width)


def _padded(rows: Sequence[Floats], value: float) -> Tensor:
    tensors = [torch.from_numpy(row) for row in rows]
    return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)


def validated(experiment: Experiment, settings: WeightSettings) -> dict[str, float]:
    """HYBRID's figures on a sample of the experiment's queries."""
    queries = sampled(experiment.task.queries, settings.validation_queries, settings.seed)
    task = replace(experiment.task, queries=queries)
    return means(search(experiment.hybrid, experiment.data, task, 1, experiment.order).gold)
