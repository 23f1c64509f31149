"""Trains the second phase: a network with one hidden layer, by the cross-entropy of the cited paper within its list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from citewell.index.second_phase import Numbers
from citewell.lab.metrics import means
from citewell.lab.second_phase.examples import Examples

STEPS = 320
"""Steps that a small corpus is read again for: 500 contexts then teach what 10,000 do."""


@dataclass(frozen=True, slots=True)
class Training:
    """The settings of a training run."""

    units: int = 16
    """Units of the hidden layer."""
    epochs: int = 0
    """Passes over the queries. 0: four, and more where four are less than `STEPS` steps, but at most forty."""
    batch: int = 64
    """Queries of one step; all of one corpus."""
    rate: float = 3e-3
    decay: float = 1e-2
    trust: float = 0.5
    """Added after training to the weight of the first phase's score, so that the model also fits other corpora than
    the one that it learned from; chosen on validation of neurips25 and acl."""
    seed: int = 0

    def passes(self, steps: int) -> int:
        """How often the queries are read, if once takes so many steps."""
        return self.epochs or max(4, min(40, round(STEPS / steps)))


class Network(torch.nn.Module):
    """direct · x + out · relu(hidden · x + bias); before training, the score of the first phase."""

    def __init__(self, names: Sequence[str], units: int) -> None:
        super().__init__()
        self.direct = torch.nn.Linear(len(names), 1, bias=False)
        self.hidden = torch.nn.Linear(len(names), units)
        self.out = torch.nn.Linear(units, 1, bias=False)
        torch.nn.init.zeros_(self.direct.weight)
        torch.nn.init.zeros_(self.out.weight)
        with torch.no_grad():
            self.direct.weight[0, list(names).index("score")] = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.direct(x) + self.out(torch.relu(self.hidden(x))))[..., 0]  # type: ignore[no-any-return]

    def arrays(self) -> dict[str, Numbers]:
        """The weights as the model's file names them."""
        named = {
            "direct": self.direct.weight[0],
            "hidden": self.hidden.weight,
            "bias": self.hidden.bias,
            "out": self.out.weight[0],
        }
        return {name: weights.detach().double().numpy() for name, weights in named.items()}


def train(
    names: Sequence[str], corpora: Sequence[Examples], settings: Training, on_epoch: Callable[[int, Network], None]
) -> Network:
    """A network trained on the answerable queries of all corpora."""
    torch.manual_seed(settings.seed)
    rng = np.random.default_rng(settings.seed)
    learned = [corpus.answerable() for corpus in corpora]
    size = max(1, min(settings.batch, *(len(corpus.gold) for corpus in learned)))
    steps = sum(len(corpus.gold) // size for corpus in learned)
    if not steps:
        raise ValueError("the first phase finds the cited paper of no train query: nothing to learn from")
    network = Network(names, settings.units)
    optimiser = torch.optim.AdamW(network.parameters(), lr=settings.rate, weight_decay=settings.decay)
    passes = settings.passes(steps)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, settings.rate, total_steps=passes * steps + 1)
    for epoch in range(passes):
        batches = [
            (number, rows[start : start + size])
            for number, corpus in enumerate(learned)
            for rows in [rng.permutation(len(corpus.gold))]
            for start in range(0, len(rows) - size + 1, size)
        ]
        for at in rng.permutation(len(batches)).tolist():
            number, rows = batches[at]
            corpus = learned[number]
            scores = network(torch.from_numpy(corpus.features[rows].astype(np.float32)))
            scores = scores.masked_fill(torch.from_numpy(~corpus.listed[rows]), float("-inf"))
            loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(corpus.gold[rows]))
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
        on_epoch(epoch + 1, network)
    with torch.no_grad():
        network.direct.weight[0, list(names).index("score")] += settings.trust
    return network


def ranks(network: Network, asked: Examples) -> np.ndarray:
    """The rank of each cited paper in the new order, 0 where the first phase did not find it."""
    found = np.zeros(len(asked.gold), np.int64)
    with torch.no_grad():
        for row, place in enumerate(asked.gold.tolist()):
            if place >= 0:
                scores = network(torch.from_numpy(asked.features[row][asked.listed[row]].astype(np.float32))).numpy()
                ties = (scores == scores[place]) & (np.arange(len(scores)) < place)
                found[row] = 1 + np.count_nonzero((scores > scores[place]) | ties)
    return found


def figures(found: np.ndarray) -> dict[str, float]:
    """The figures that variants are compared by."""
    return means(found, ("MRR", "R@10", "R@20", "R@100", "R@300"))
