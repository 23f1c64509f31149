"""Learns the query map of HYBRID: v_q from the vectors of context and draft, against profiles that stay as they are.

Each train query ranks its cited paper before some of HYBRID's first candidates and before random papers, by the sum
that HYBRID ranks by. Profiles leave the query paper's own citations out, as everywhere in training. The map starts at
eq. 4 and is kept only where validation is better than without it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from citewell.lab import chosen
from citewell.lab.experiment import Experiment, OnProgress
from citewell.lab.hybrid_examples import RANDOM_LEXICAL, Examples, Ints, make_examples
from citewell.lab.metrics import means
from citewell.lab.retrieval import search
from citewell.lab.sampling import sampled
from citewell.profiler.profiles import Vectors
from citewell.profiler.query_map import QueryMap


@dataclass(frozen=True, slots=True)
class MapSettings:
    """How a map is learned."""

    queries: int = 30_000
    """The most contexts of the train split that are used, drawn with a seed."""
    depth: int = 50
    """How many of HYBRID's first candidates negatives are drawn from."""
    hard: int = 24
    """Negatives of a query from these candidates."""
    random: int = 1024
    """Random papers that are negatives of a whole batch: most papers are uncited, and HYBRID's first ones are not."""
    random_lexical: float = RANDOM_LEXICAL
    """The lexical score that a random paper is taken to have."""
    batch: int = 256
    epochs: int = 2
    learning_rate: float = 1e-4
    temperature: float = 0.1
    validation_queries: int = 1000
    seed: int = 13


@dataclass(frozen=True, slots=True)
class Learned:
    """A map, and what HYBRID reaches on validation without and with it."""

    context: Vectors
    paper: Vectors
    before: dict[str, float]
    after: dict[str, float]

    @property
    def better(self) -> bool:
        """Whether the map is worth having: a higher MRR and no lower R@300."""
        return self.after["MRR"] > self.before["MRR"] and self.after["R@300"] >= self.before["R@300"]


def learn(
    experiment: Experiment, settings: MapSettings, on_progress: OnProgress, lists_file: Path | None = None
) -> Learned:
    """The best map of all epochs, by HYBRID's MRR on validation; `experiment` asks validation queries.

    The candidate lists, the costly part, are kept in `lists_file` and reused.
    """
    torch.manual_seed(settings.seed)
    plain = replace(experiment, query_map=None)
    examples = make_examples(
        plain.of_split("train"), settings.queries, settings.depth, settings.seed, on_progress, lists_file
    )
    size = examples.contexts.shape[1]
    weights = chosen.QUERY
    maps = [nn.Parameter(torch.eye(size) * weight) for weight in (weights.gamma, weights.delta)]
    optimizer = torch.optim.AdamW(maps, weight_decay=0.0, betas=(0.9, 0.98))
    total = settings.epochs * max(1, len(examples) // settings.batch)
    rng, step = np.random.default_rng(settings.seed), 0
    before = validated(plain, maps, settings)
    best = Learned(*_arrays(maps), before, before)
    while step < total:
        order = rng.permutation(len(examples))
        for start in range(0, max(1, len(order) - settings.batch + 1), settings.batch):
            rate = settings.learning_rate * min(1.0, (step + 1) / 20) * max(0.02, 1 - step / total)
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = batch_loss(maps, examples, order[start : start + settings.batch], settings, rng)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            step += 1
            on_progress("query map, steps", step, total)
            if step == total:
                break
        after = validated(plain, maps, settings)
        if after["MRR"] > best.after["MRR"]:
            best = Learned(*_arrays(maps), before, after)
    return best


def batch_loss(
    maps: list[nn.Parameter], examples: Examples, rows: Ints, settings: MapSettings, rng: np.random.Generator
) -> Tensor:
    """Cross-entropy of the cited papers among hard and random negatives, by HYBRID's score."""
    context, draft = torch.from_numpy(examples.contexts[rows]), torch.from_numpy(examples.drafts[rows])
    asked = nn.functional.normalize(context @ maps[0] + draft @ maps[1], dim=1)
    columns = rng.integers(0, examples.candidates.shape[1], (len(rows), settings.hard))
    papers = examples.candidates[rows[:, None], columns]
    hard = torch.einsum("qd,qnd->qn", asked, torch.from_numpy(examples.profiles[np.maximum(papers, 0)]))
    hard = hard + chosen.LEXICAL * torch.from_numpy(examples.lexical[rows[:, None], columns])
    hard = hard.masked_fill(torch.from_numpy(papers < 0), -torch.inf)
    random, is_cited = examples.random_papers(rows, settings.random, rng)
    others = asked @ torch.from_numpy(examples.profiles[random]).T + chosen.LEXICAL * settings.random_lexical
    others = others.masked_fill(torch.from_numpy(is_cited), -torch.inf)
    own = (asked * torch.from_numpy(examples.profiles[examples.cited[rows]])).sum(1)
    own = own + chosen.LEXICAL * torch.from_numpy(examples.cited_lexical[rows])
    logits = torch.cat([own[:, None], hard, others], 1) / settings.temperature
    return nn.functional.cross_entropy(logits, torch.zeros(len(rows), dtype=torch.long))


def validated(experiment: Experiment, maps: list[nn.Parameter], settings: MapSettings) -> dict[str, float]:
    """HYBRID's figures on a sample of the experiment's queries with a map."""
    context, paper = _arrays(maps)
    mapped = replace(experiment, query_map=QueryMap(context, paper, "", ""))
    task = replace(mapped.task, queries=sampled(mapped.task.queries, settings.validation_queries, settings.seed))
    return means(search(mapped.hybrid, mapped.data, task, 1, mapped.order).gold)


def _arrays(maps: list[nn.Parameter]) -> tuple[Any, Any]:
    context, paper = (each.detach().numpy().astype(np.float16).astype(np.float32) for each in maps)
    return context, paper
