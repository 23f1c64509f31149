"""A run folder: settings, log, checkpoint, best weights, curves. What training writes and everything else reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from citewell.lab.davinci.model import Reranker, blank_encoder, parse_heads
from citewell.lab.davinci.settings import TrainSettings
from citewell.reranker.pairs import PairTokenizer, TokenBudget


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of one training run."""

    path: Path

    @property
    def settings(self) -> TrainSettings:
        """What the run was told."""
        return TrainSettings.read(self.path / "settings.json")

    @property
    def checkpoint(self) -> Path:
        """Where training goes on after a kill."""
        return self.path / "checkpoint.pt"

    @property
    def weights(self) -> Path:
        """The weights that were kept: of the best validation, or of the last (`TrainSettings.keep`)."""
        return self.path / "model.safetensors"

    @property
    def encoder_config(self) -> dict[str, Any]:
        """The encoder's Hugging Face configuration."""
        config: dict[str, Any] = json.loads((self.path / "config.json").read_text(encoding="utf-8"))
        return config

    @property
    def tokenizer_file(self) -> Path:
        """The tokeniser as Hugging Face stores it."""
        return self.path / "tokenizer.json"

    def lists(self, name: str) -> Path:
        """Where candidate lists are kept: a run that is taken up again need not retrieve."""
        return self.path / f"{name}.lists.npz"

    def tokenizer(self, budget: TokenBudget | None = None) -> PairTokenizer:
        """Pairs as the model was trained to read them, or cut to another budget."""
        return PairTokenizer.from_file(self.tokenizer_file, budget or self.settings.budget)

    def model(self, apart: Mapping[str, Any] | None = None) -> Reranker:
        """The model with the weights that were kept, ready to score, or to learn to read the sides `apart`."""
        settings, config = self.settings, {**self.encoder_config, **(apart or {})}
        variants = {name: variant for name, (variant, _) in parse_heads(settings.heads, settings.loss).items()}
        model = Reranker(blank_encoder(config), variants, settings.head_size)
        model.load_state_dict(load_file(self.weights))
        return model.eval()

    def write_static(self, settings: TrainSettings, config: Mapping[str, Any], tokenizer: Path) -> None:
        """Writes what does not change while training."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.write_settings(settings)
        (self.path / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        shutil.copyfile(tokenizer, self.path / "tokenizer.json")

    def write_settings(self, settings: TrainSettings) -> None:
        """Writes what the run is told."""
        (self.path / "settings.json").write_text(settings.to_json() + "\n", encoding="utf-8")

    def save_weights(self, model: Reranker) -> None:
        """Writes the weights; a reader sees the old file or the new one."""
        unfinished = self.weights.with_suffix(".part")
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}, unfinished)
        unfinished.replace(self.weights)

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Writes the state of training in one piece."""
        unfinished = self.checkpoint.with_suffix(".part")
        torch.save(dict(state), unfinished)
        unfinished.replace(self.checkpoint)

    def write_log(self, entries: list[dict[str, Any]]) -> None:
        """Writes the log anew: after a resume it holds no line twice."""
        lines = "".join(json.dumps(entry) + "\n" for entry in entries)
        (self.path / "log.jsonl").write_text(lines, encoding="utf-8")

    def log(self) -> list[dict[str, Any]]:
        """One entry a step, and one a validation."""
        return [json.loads(line) for line in (self.path / "log.jsonl").read_text(encoding="utf-8").splitlines()]
