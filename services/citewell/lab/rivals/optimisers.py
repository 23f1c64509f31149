"""Several optimisers used as one: sparse embeddings need an optimiser of their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from citewell.lab.training import State


class Optimisers:
    """What a learner does with its optimisers."""

    def __init__(self, *each: torch.optim.Optimizer) -> None:
        self._each = each

    def step(self, loss: Tensor) -> float:
        """One step of all; returns the loss as a number."""
        for optimiser in self._each:
            optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        for optimiser in self._each:
            optimiser.step()
        return float(loss.detach())

    def state(self) -> list[State]:
        """What `restore` needs."""
        return [optimiser.state_dict() for optimiser in self._each]

    def restore(self, saved: Sequence[State]) -> None:
        """Continues from what `state` returned."""
        for optimiser, its in zip(self._each, saved, strict=True):
            optimiser.load_state_dict(its)
