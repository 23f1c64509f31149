"""The training loop, with validation. After a kill it resumes and reaches the same weights bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from citewell.lab import metrics
from citewell.lab.brackets import Brackets
from citewell.lab.davinci.batches import PairBatches, TrainingBatches
from citewell.lab.davinci.exported import starting_point
from citewell.lab.davinci.lists import CandidateLists
from citewell.lab.davinci.model import (
    HeadOutput,
    Loss,
    Reranker,
    keep_layers,
    load_encoder,
    minilm_folder,
    parse_heads,
    ranking_loss,
)
from citewell.lab.davinci.priors import PriorKind
from citewell.lab.davinci.runs import RunFolder
from citewell.lab.davinci.scoring import joined, score_lists, torch_encode
from citewell.lab.davinci.settings import TrainSettings
from citewell.lab.davinci.texts import PairTexts
from citewell.reranker.pairs import PairTokenizer
from citewell.reranker.rerank import shortened

OnProgress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class TrainingData:
    """The training and validation data of a run."""

    lists: CandidateLists
    validation: CandidateLists
    texts: PairTexts


def train(
    settings: TrainSettings,
    data: TrainingData,
    folder: Path,
    on_progress: OnProgress = lambda entry: None,
    until: int | None = None,
) -> RunFolder:
    """Trains in `folder`, from its checkpoint if there is one; `until` stops at a step, like a kill."""
    run = RunFolder(folder)
    if not run.checkpoint.exists():
        tokenizer, config = _encoder_files(settings)
        run.write_static(settings, config, tokenizer)
    elif replace(run.settings, steps=settings.steps) != settings or (
        run.settings != settings and not settings.cooldown
    ):
        raise ValueError(f"{folder} holds a run with other settings; name another folder or delete it")
    trainer = _Trainer(settings, data, run)
    if run.settings.steps != settings.steps:
        reached = min(run.settings.steps, settings.steps) - settings.cooldown
        if trainer.step > reached:
            raise ValueError(
                f"{folder} is at step {trainer.step}, where its rate falls: steps could be changed until {reached}"
            )
        run.write_settings(settings)
    while trainer.unfinished and (until is None or trainer.step < until):
        on_progress(trainer.advance())
    return run


class _Trainer:
    """The state of a run between two steps; the random numbers of a step depend only on (seed, step)."""

    def __init__(self, settings: TrainSettings, data: TrainingData, run: RunFolder) -> None:
        self.settings, self.data, self.run = settings, data, run
        self.device = torch.device(settings.device)
        self.losses = {name: loss for name, (_, loss) in parse_heads(settings.heads, settings.loss).items()}
        self.tokenizer = run.tokenizer()
        self.model = _new_model(settings).to(self.device)
        self.teacher = _teacher(settings, self.device)
        self.optimizer = torch.optim.AdamW(_parameter_groups(self.model, settings))
        lengths = np.array([len(data.texts.data.contexts.texts[int(row)]) for row in data.lists.queries], np.int32)
        tokenizers = [run.tokenizer(shortened(settings.budget, share)) for share in settings.shares]
        texts = [replace(data.texts, abstracts=shown) for shown in settings.abstracts]
        answers = Brackets(data.texts.data).answers if settings.whole_bracket else None

        def batches(texts: PairTexts, tokenizer: PairTokenizer) -> TrainingBatches:
            pairs = PairBatches(data.lists, texts, tokenizer, settings.decay)
            return TrainingBatches(
                pairs, settings.sampling, settings.queries_per_batch, lengths, settings.seed, answers
            )

        self.batches = [batches(each, tokenizer) for each in texts for tokenizer in tokenizers]
        self.step, self.best, self.stale = 0, -1.0, 0
        self.entries: list[dict[str, Any]] = []
        if run.checkpoint.exists():
            self._restore()

    @property
    def unfinished(self) -> bool:
        return self.step < self.settings.steps and self.stale < self.settings.patience

    def advance(self) -> dict[str, Any]:
        """One optimiser step, then a validation and a checkpoint if they are due; returns the log entry."""
        settings = self.settings
        torch.manual_seed(settings.seed * 1_000_003 + self.step)
        self.model.train()
        rate = learning_rate_share(self.step, settings.steps, settings.warmup, settings.cooldown)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * rate
        losses = dict.fromkeys(self.losses, 0.0)
        for part in range(settings.accumulate):
            found = self._losses(self.step * settings.accumulate + part)
            torch.autograd.backward(torch.stack(list(found.values())).sum() / settings.accumulate)
            for name, loss in found.items():
                losses[name] += float(loss.detach()) / settings.accumulate
        nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        entry: dict[str, Any] = {"step": self.step, "learning_rate": settings.learning_rate * rate, "loss": losses}
        due = self.step % settings.validate_every == 0 or self.step == settings.steps
        if due:
            entry["validation_mrr"] = self._validate()
        self.entries.append(entry)
        if due or self.step % settings.checkpoint_every == 0:
            self.run.write_log(self.entries)
            self._checkpoint()
        return entry

    def _losses(self, number: int) -> dict[str, Tensor]:
        settings = self.settings
        batch = self.batches[number % len(self.batches)].batch(number).tensors(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
            outputs: dict[str, HeadOutput] = self.model(*batch)
            wanted = self._taught(batch)
        width = 1 + settings.sampling.count
        retrieval = settings.joined * batch[3][:, list(PriorKind).index(PriorKind.SCORE)]

        def loss(kind: Loss, logit: Tensor) -> Tensor:
            found = ranking_loss(kind, (logit + retrieval).reshape(-1, width), settings.margin)
            if settings.alone:
                found = found + settings.alone * ranking_loss(kind, logit.reshape(-1, width), settings.margin)
            if wanted is not None:
                shares = torch.softmax((wanted + retrieval).reshape(-1, width), dim=1)
                told = nn.functional.cross_entropy((logit + retrieval).reshape(-1, width), shares)
                found = found + settings.taught * told
            return found

        return {name: loss(kind, outputs[name].logit) for name, kind in self.losses.items()}

    def _taught(self, batch: tuple[Tensor, ...]) -> Tensor | None:
        """The teacher's log-odds of the pairs; None without a teacher."""
        if self.teacher is None:
            return None
        with torch.no_grad():
            first: HeadOutput = next(iter(self.teacher(*batch).values()))
        return first.logit

    def _validate(self) -> dict[str, float]:
        """MRR of every head; that of the first decides which weights to keep, and when to stop."""
        lists = self.data.validation
        pairs = PairBatches(lists, self.data.texts, self.tokenizer, self.settings.decay)
        scores = score_lists(self.model, pairs, torch_encode(self.model, self.settings.precision))
        orders = {name: joined(each, lists, self.settings.joined).logit for name, each in scores.items()}
        found = {name: metrics.means(lists.ranks(order), ["MRR"])["MRR"] for name, order in orders.items()}
        better = found[self.settings.heads[0]] > self.best
        self.stale = 0 if better else self.stale + 1
        self.best = max(self.best, found[self.settings.heads[0]])
        if better or self.settings.keep == "last":
            self.run.save_weights(self.model)
        return found

    def _checkpoint(self) -> None:
        state = {"step": self.step, "best": self.best, "stale": self.stale, "entries": self.entries}
        tensors = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        self.run.save_checkpoint(state | tensors)

    def _restore(self) -> None:
        state = torch.load(self.run.checkpoint, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.best, self.stale = state["step"], state["best"], state["stale"]
        self.entries = state["entries"]


def learning_rate_share(step: int, steps: int, warmup: float, cooldown: int = 0) -> float:
    """Share of the peak rate at a step counted from 0: a linear rise, the peak, a linear fall to zero.

    Without a `cooldown` the fall begins where the rise ends.
    """
    rising = max(1, round(warmup * steps))
    if step < rising:
        return (step + 1) / rising
    return min(1.0, (steps - step) / max(1, cooldown or steps - rising))


def _encoder_files(settings: TrainSettings) -> tuple[Path, dict[str, Any]]:
    """The tokeniser's file and the configuration of the encoder a run starts from."""
    if settings.start_from:
        source = starting_point(Path(settings.start_from))
        layers = {"num_hidden_layers": settings.layers} if settings.layers else {}
        return source.tokenizer_file, source.encoder_config | settings.apart | layers
    folder = Path(minilm_folder() if settings.encoder == "minilm" else settings.encoder)
    encoder: Any = load_encoder(settings.encoder, settings.layers, settings.apart)
    if not (folder / "tokenizer.json").exists():  # a Hugging Face id: its files are in the hub's cache
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(settings.encoder, "tokenizer.json")), encoder.config.to_dict()
    return folder / "tokenizer.json", encoder.config.to_dict()


def _new_model(settings: TrainSettings) -> Reranker:
    torch.manual_seed(settings.seed)
    variants = {name: variant for name, (variant, _) in parse_heads(settings.heads, settings.loss).items()}
    if not settings.start_from:
        encoder = load_encoder(settings.encoder, settings.layers, settings.apart)
        return Reranker(encoder, variants, settings.head_size)
    source = starting_point(Path(settings.start_from)).model(settings.apart)
    if settings.layers:
        keep_layers(source.encoder, settings.layers)
    model = Reranker(source.encoder, variants, settings.head_size)
    for name in settings.heads:
        if name in source.heads:
            model.heads[name].load_state_dict(source.heads[name].state_dict())
    return model


def _teacher(settings: TrainSettings, device: torch.device) -> Reranker | None:
    if not settings.teacher:
        return None
    model = starting_point(Path(settings.teacher)).model(settings.apart).to(device)
    if len(model.heads) != 1:
        raise ValueError(f"the teacher {settings.teacher} has {len(model.heads)} heads; it must have one")
    return model.eval().requires_grad_(requires_grad=False)


def _parameter_groups(model: Reranker, settings: TrainSettings) -> list[dict[str, Any]]:
    """Encoder and heads at their own rates; biases and norms without decay; frozen parts left out."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in _trainable(model, settings):
        rate = settings.head_learning_rate if name.startswith("heads.") else settings.learning_rate
        decay = settings.weight_decay if parameter.ndim > 1 else 0.0
        groups.setdefault((rate, decay), []).append(parameter)
    return [{"params": some, "lr": rate, "peak": rate, "weight_decay": decay} for (rate, decay), some in groups.items()]


def _trainable(model: Reranker, settings: TrainSettings) -> Iterator[tuple[str, nn.Parameter]]:
    frozen = ["encoder."] if settings.freeze_encoder else []
    if settings.freeze_words:
        frozen.append("encoder.embeddings.word_embeddings.")
    if settings.freeze_sides:
        frozen += ["encoder.embeddings.", *(f"encoder.encoder.layer.{at}." for at in range(settings.apart_layers))]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(tuple(frozen)))
        if parameter.requires_grad:
            yield name, parameter
