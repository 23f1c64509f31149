"""All settings of a training run, in one object that is stored with the model."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from citewell.lab.davinci.lists import NegativeSampling
from citewell.lab.davinci.priors import DECAY
from citewell.reranker.pairs import TokenBudget


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Settings of training; deploy/docs/davinci-training.md has those of the model that ships."""

    encoder: str = "minilm"
    """ENC2: "minilm" (from its Python package), a folder, or a Hugging Face id ("allenai/scibert_scivocab_uncased")."""
    layers: int = 0
    """How many of its first layers to keep; 0 keeps all. With `start_from`: the first, the last, and some between."""
    apart_layers: int = 0
    """How many of its first layers read query and candidate separately, so that serving can cache their output."""
    side_positions: tuple[int, int] = (256, 256)
    """With separate layers: the numbers of positions of query and candidate; longer sides repeat the last position."""
    heads: tuple[str, ...] = ("davinci",)
    """The first is the model, others are baselines on the same encoder and pairs. `variant` or `variant+loss`."""
    start_from: str = ""
    """Run folder, or exported model folder, whose encoder (and heads of the same name) to start from."""
    freeze_encoder: bool = False
    """Train only the heads."""
    freeze_words: bool = True
    """Do not train the word embeddings: half of the encoder's weights, which a short run cannot improve."""
    freeze_sides: bool = False
    """Do not train what reads the sides apart: the model can then share sides.onnx with the one that it starts from."""
    candidates: str = "profiler"
    """Which of the lab's systems retrieves: "profiler" (eq. 3), "hybrid" or "second-phase"."""
    depth: int = 100
    """k."""
    leave_one_out: bool = True
    """Take a train paper's own citations out of the profiles that rank its candidates. False measures the leak."""
    inject: bool = False
    """Keep train queries whose cited paper was not retrieved, at rank k + 1, as the paper does. All negatives then
    rank above the positive: the heads learn that the least likely candidate is the right one. Serving has no such
    pair."""
    whole_bracket: bool = True
    """Never draw a negative that the query's own bracket cites as well. False lets other right answers be
    negatives."""
    train_queries: int = 30_000
    """The most contexts of the train split that are used, drawn with a seed."""
    validation_queries: int = 100
    head_size: int = 128
    """d_h; not published."""
    joined: float = 0.0
    """The weight of the retrieval's score that is added to the logits in loss and validation, as the recommender adds
    the second phase's: the heads then learn what that score does not know."""
    alone: float = 0.0
    """The weight of a second loss, of the logits without the retrieval's score: a model that only learns what that
    score does not know ranks badly where there is no such score."""
    teacher: str = ""
    """Run folder, or exported model folder, whose scores of each query's papers are learned as well (distillation):
    a small model learns more from them than from the cited paper alone."""
    taught: float = 1.0
    """The weight of the teacher's loss."""
    loss: str = "listwise"
    """"margin" is eq. 11."""
    margin: float = 0.1
    decay: float = DECAY
    """λ of eq. 6."""
    sampling: NegativeSampling = field(default_factory=NegativeSampling)
    budget: TokenBudget = field(default_factory=TokenBudget)
    shares: tuple[float, ...] = (1.0,)
    """Batches are cut to these shares of the budget in turn: a model that has read short texts ranks by them in a first
    pass."""
    abstracts: tuple[bool, ...] = (True,)
    """Batches show abstracts or leave them out in turn: a model that never read titles alone fails on corpora that have
    nothing else."""
    mentions: int = 2
    """The number of citing contexts that share the budget's `mentions` tokens."""
    steps: int = 600
    """Optimiser steps; the learning rate falls to zero by then."""
    queries_per_batch: int = 8
    accumulate: int = 2
    """Batches per step."""
    learning_rate: float = 1e-4
    head_learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup: float = 0.05
    """Share of the steps in which the learning rate rises."""
    cooldown: int = 0
    """Over how many of the last steps the rate falls to zero. 0: from the end of the warm-up on. With a cooldown,
    `steps` may be changed while a run has not reached it: nothing before the cooldown depends on them but the warm-up.
    """
    clip: float = 1.0
    validate_every: int = 100
    """Steps between two validations."""
    checkpoint_every: int = 20
    """Steps between two checkpoints, the most that a kill can lose. Each validation also ends with a checkpoint."""
    keep: str = "best"
    """"best" keeps the weights of the best validation, "last" those of the last one: after the rate has fallen to zero
    they are the better bet where validation is small and therefore noisy."""
    patience: int = 4
    """Validations without a better MRR after which training stops."""
    precision: str = "bf16"
    """"bf16" or "fp32"; weights, heads and optimiser are fp32 in both."""
    device: str = "cpu"
    seed: int = 13

    @property
    def apart(self) -> dict[str, Any]:
        """The entries of an encoder's configuration for separate layers."""
        return {"apart_layers": self.apart_layers, "side_positions": self.side_positions} if self.apart_layers else {}

    def to_json(self) -> str:
        """The settings as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def read(cls, path: Path) -> TrainSettings:
        """The settings that `to_json` wrote; missing ones have their defaults."""
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        stored["sampling"] = NegativeSampling(**stored.get("sampling", {}))
        stored["budget"] = TokenBudget(**stored.get("budget", {}))
        stored["side_positions"] = tuple(stored.get("side_positions", cls().side_positions))
        stored["shares"] = tuple(stored.get("shares", cls().shares))
        stored["abstracts"] = tuple(stored.get("abstracts", cls().abstracts))
        stored["heads"] = tuple(stored.get("heads", cls().heads))
        return cls(**stored)
