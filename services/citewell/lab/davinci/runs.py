"""A run folder: settings, log, checkpoint, kept weights, curves. Training writes it; evaluation and export read it."""

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
        """The settings of the run."""
        return TrainSettings.read(self.path / "settings.json")

    @property
    def checkpoint(self) -> Path:
        """The file from which training resumes."""
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
        """The folder of candidate lists: a resumed run does not retrieve again."""
        return self.path / f"{name}.lists.npz"

    def tokenizer(self, budget: TokenBudget | None = None) -> PairTokenizer:
        """The tokeniser of pairs with the budget of training, or with another."""
        return PairTokenizer.from_file(self.tokenizer_file, budget or self.settings.budget)

    def model(self, apart: Mapping[str, Any] | None = None) -> Reranker:
        """The model with the kept weights, ready to score, or with layers `apart` to be trained further."""
        settings, config = self.settings, {**self.encoder_config, **(apart or {})}
        variants = {name: variant for name, (variant, _) in parse_heads(settings.heads, settings.loss).items()}
        model = Reranker(blank_encoder(config), variants, settings.head_size)
        model.load_state_dict(load_file(self.weights))
        return model.eval()

    def write_static(self, settings: TrainSettings, config: Mapping[str, Any], tokenizer: Path) -> None:
        """Writes the files that do not change during training."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.write_settings(settings)
        (self.path / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        shutil.copyfile(tokenizer, self.path / "tokenizer.json")

    def write_settings(self, settings: TrainSettings) -> None:
        """Writes the settings."""
        (self.path / "settings.json").write_text(settings.to_json() + "\n", encoding="utf-8")

    def save_weights(self, model: Reranker) -> None:
        """Writes the weights atomically."""
        unfinished = self.weights.with_suffix(".part")
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}, unfinished)
        unfinished.replace(self.weights)

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Writes the state of training atomically."""
        unfinished = self.checkpoint.with_suffix(".part")
        torch.save(dict(state), unfinished)
        unfinished.replace(self.checkpoint)

    def write_log(self, entries: list[dict[str, Any]]) -> None:
        """Rewrites the whole log, so that it has no line twice after a resume."""
        lines = "".join(json.dumps(entry) + "\n" for entry in entries)
        (self.path / "log.jsonl").write_text(lines, encoding="utf-8")

    def log(self) -> list[dict[str, Any]]:
        """One entry per step, and one per validation."""
        return [json.loads(line) for line in (self.path / "log.jsonl").read_text(encoding="utf-8").splitlines()]
