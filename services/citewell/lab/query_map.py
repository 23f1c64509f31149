"""Learns the query map of HYBRID: v_q from the vectors of context and draft, against profiles that stay as they are.

Each train query ranks its cited paper before some of HYBRID's first candidates and before random papers, by the sum
that HYBRID ranks by. Profiles leave the query paper's own citations out, as everywhere in training. The map starts at
eq. 4 and is kept only where validation is better than without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from citewell.lab import chosen
from citewell.lab.dataset import Rows
from citewell.lab.davinci.lists import CandidateLists
from citewell.lab.davinci.retrieve import candidate_lists
from citewell.lab.experiment import Experiment
from citewell.lab.metrics import means
from citewell.lab.retrieval import search
from citewell.lab.sampling import sampled
from citewell.profiler.profiles import Vectors, normalised, profile
from citewell.profiler.query_map import QueryMap

OnProgress = Callable[[str, int, int], None]
Ints = NDArray[np.int64]


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
    random_lexical: float = 0.03
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


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Train queries with their negatives. Papers are rows of `profiles`."""

    contexts: Vectors
    drafts: Vectors
    cited: Ints
    cited_lexical: Vectors
    candidates: Ints
    """[queries, depth]; -1 where there is none, and where a paper is a right answer."""
    lexical: Vectors
    profiles: Vectors
    """The profiles of all papers, then those without one citing paper's citations."""
    papers: int
    """How many of the profiles are those of all papers."""

    def __len__(self) -> int:
        return len(self.cited)


def learn(
    experiment: Experiment, settings: MapSettings, on_progress: OnProgress, lists_file: Path | None = None
) -> Learned:
    """The best map of all epochs, by HYBRID's MRR on validation; `experiment` asks validation queries.

    The candidate lists, the costly part, are kept in `lists_file` and reused.
    """
    torch.manual_seed(settings.seed)
    plain = replace(experiment, query_map=None)
    examples = make_examples(plain.of_split("train"), settings, on_progress, lists_file)
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


def make_examples(
    train: Experiment, settings: MapSettings, on_progress: OnProgress, lists_file: Path | None = None
) -> Examples:
    """HYBRID's candidates of a sample of train queries, with profiles that leave each query's own paper out."""
    lists = _lists(train, settings, on_progress, lists_file)
    contexts, vectors = train.data.contexts, train.vectors
    citing = contexts.citing[lists.queries]
    profiler = train.profiler
    profiles, place, base = [profiler.profiles], {}, len(profiler.profiles)
    for paper in np.unique(citing):
        cited, sums = train.table.without(int(paper))
        profiles.append(normalised(profile(vectors.papers[cited], sums, chosen.PROFILE)))
        place[int(paper)] = {int(each): base + at for at, each in enumerate(cited)}
        base += len(cited)
    stacked = np.concatenate(profiles)
    asked = profiler.query_vectors(lists.queries.astype(np.int64))
    candidates = np.full(lists.papers.shape, -1, np.int64)
    lexical = np.zeros(lists.papers.shape, np.float32)
    cited_rows, cited_lexical = np.zeros(len(lists), np.int64), np.zeros(len(lists), np.float32)
    right = lists.right(train.brackets.answers)
    for row in range(len(lists)):
        own = place[int(citing[row])]
        rows = np.array([own.get(int(paper), int(paper)) for paper in lists.papers[row]])
        cosine = stacked[rows] @ asked[row]
        lexical[row] = (lists.scores[row] - cosine) / chosen.LEXICAL
        candidates[row] = np.where(right[row] | (lists.papers[row] < 0), -1, rows)
        cited_rows[row] = own.get(int(lists.gold[row]), int(lists.gold[row]))
        cited_lexical[row] = (lists.gold_score[row] - stacked[cited_rows[row]] @ asked[row]) / chosen.LEXICAL
    queries = lists.queries
    return Examples(
        vectors.contexts[queries],
        vectors.papers[citing],
        cited_rows,
        cited_lexical,
        candidates,
        lexical,
        stacked,
        len(profiler.profiles),
    )


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
    drawn = torch.from_numpy(examples.profiles[rng.integers(0, examples.papers, settings.random)])
    others = asked @ drawn.T + chosen.LEXICAL * settings.random_lexical
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


def _lists(train: Experiment, settings: MapSettings, on_progress: OnProgress, file: Path | None) -> CandidateLists:
    if file and file.exists():
        return CandidateLists.load(file)
    queries: Rows = sampled(train.task.queries, settings.queries, settings.seed)
    lists = candidate_lists(train.hybrid, train, queries, settings.depth, on_progress)
    if file:
        unfinished = file.with_suffix(".part.npz")
        lists.save(unfinished)
        unfinished.replace(file)
    return lists
