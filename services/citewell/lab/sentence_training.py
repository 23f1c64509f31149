"""The training of sentence encoders, which the window encoder and ENC1 share: contexts that teach, batches, schedule.

Only three of four contexts teach. The others are left to what reads the vectors (second phase, DAVINCI): on contexts
that an encoder has learned by heart, its vectors look better than they are.
"""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModel

from citewell.inference.bert_graph import bert_encoder
from citewell.inference.quantization import with_int8_weights
from citewell.lab.experiment import Experiment
from citewell.lab.learned_contexts import checksums, write_learned
from citewell.lab.pretrained import freeze_word_embeddings, loading_quietly
from citewell.lab.sampling import sampled
from citewell.lab.training import State, TrainingRun
from citewell.profiler.encoder_files import read_encoder_files

Ints = NDArray[np.int64]
_LEFT = 4
"""One of so many contexts teaches nothing."""
_COPIED = ("tokenizer.json", "modules.json", "sentence_bert_config.json", "1_Pooling/config.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceSettings:
    """What the trainings have in common."""

    queries: int = 30_000
    """The most train contexts that are learned from."""
    depth: int = 50
    """How many of HYBRID's first candidates negatives are drawn from."""
    batch: int
    steps: int
    learning_rate: float = 6e-5
    warmup: int = 25
    """Steps in which the rate rises."""
    falling: float = 0.6
    """Share of the steps, the last ones, in which the rate falls to zero."""
    validation_queries: int = 300
    seed: int
    start_from: str = ""
    """The run folder of an earlier training, whose weights this one starts from; empty = ENC1."""


class SentenceLearner(ABC):
    """A `training.Learner` of a BERT encoder whose vector is the mean of its tokens' states, at unit length."""

    def __init__(self, settings: SentenceSettings, experiment: Experiment, folder: Path) -> None:
        """`folder` holds ENC1's files. `experiment` asks validation queries."""
        self._schedule = settings
        torch.manual_seed(settings.seed)
        with loading_quietly():
            self.model = AutoModel.from_pretrained(str(folder), dtype=torch.float32, add_pooling_layer=False)
        if settings.start_from:
            self.model.load_state_dict(TrainingRun(Path(settings.start_from)).weights())
        freeze_word_embeddings(self.model)
        trained = [each for each in self.model.parameters() if each.requires_grad]
        groups = [{"params": trained, "lr": settings.learning_rate, "peak": settings.learning_rate}]
        self._optimiser = torch.optim.AdamW(groups, weight_decay=0.01)
        train = experiment.of_split("train")
        # By the text, so that the works of one bracket stay together.
        texts = [train.data.contexts.texts[int(query)] for query in train.task.queries]
        teaches = checksums(texts) % _LEFT != 0
        self.teaching = [text for text, one in zip(texts, teaches, strict=True) if one]
        """The contexts that may teach: also those that only an earlier run learned from, which this one starts from."""
        self.train = replace(train, query_map=None, task=replace(train.task, queries=train.task.queries[teaches]))
        """The experiment that asks these contexts."""
        self._validation = experiment
        self._watched = sampled(experiment.task.queries, settings.validation_queries, settings.seed)

    def step(self, number: int) -> float:
        settings = self._schedule
        torch.manual_seed(settings.seed * 1_000_003 + number)
        rate = min(1.0, (number + 1) / settings.warmup, (settings.steps - number) / (settings.falling * settings.steps))
        for group in self._optimiser.param_groups:
            group["lr"] = group["peak"] * rate
        self.model.train()
        loss = self.loss(self.batch(number), np.random.default_rng((settings.seed, 1, number)))
        self._optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimiser.step()
        return float(loss.detach())

    @abstractmethod
    def batch(self, number: int) -> Ints:
        """The train queries of a step; each once an epoch."""

    @abstractmethod
    def loss(self, rows: Ints, rng: np.random.Generator) -> Tensor:
        """The loss of these train queries."""

    @abstractmethod
    def validate(self) -> float:
        """The figure that decides which weights are kept."""

    def epoch_of(self, number: int, queries: int) -> tuple[Ints, int, np.random.Generator]:
        """The shuffled queries of a step's epoch in whole batches, the batch's place in it, and the random numbers."""
        size = self._schedule.batch
        count = queries // size
        if not count:
            raise ValueError(f"a batch needs {size} train contexts, there are {queries}")
        epoch, at = divmod(number, count)
        rng = np.random.default_rng((self._schedule.seed, 0, epoch))
        order: Ints = rng.permutation(queries)[: count * size]
        return order, at, rng

    def vectors(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        """The mean of the tokens' last states, at unit length, as ENC1 has it."""
        longest = max(map(len, tokens))
        ids = torch.tensor([[*each, *[0] * (longest - len(each))] for each in tokens])
        mask = torch.tensor([[1] * len(each) + [0] * (longest - len(each)) for each in tokens])
        with torch.autocast("cpu", torch.bfloat16):
            states = self.model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        weights = mask[:, :, None].float()
        return nn.functional.normalize((states * weights).sum(1) / weights.sum(1), dim=1)

    def encoded(self, tokens: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """The vectors of texts, one by one, without learning."""
        self.model.eval()
        with torch.inference_mode():
            return np.concatenate([self.vectors([each]).numpy() for each in tokens])

    def weights(self) -> State:
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    def state(self) -> State:
        return {"optimiser": self._optimiser.state_dict()}

    def restore(self, weights: State, state: State) -> None:
        self.model.load_state_dict(weights)
        self._optimiser.load_state_dict(state["optimiser"])


def write_encoder(weights: State, encoder: str, contexts: Sequence[str], out: Path) -> None:
    """Writes a folder that a profiler loads: the graph with int8 weights, the files of ENC1, its start, and the
    checksums of the contexts that it learned from."""
    files = read_encoder_files(encoder)
    arrays = {name: tensor.float().numpy() for name, tensor in weights.items()}
    out.mkdir(parents=True, exist_ok=True)
    onnx.save(with_int8_weights(bert_encoder(files.config, arrays)), out / "model.onnx")
    for name in _COPIED:
        (out / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(files.folder / name, out / name)
    config = {name: value for name, value in files.config.items() if name != "_name_or_path"}
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")
    write_learned(out, contexts)
