"""Pretrained encoders that training starts from."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from torch import nn

from citewell.lab.davinci.model import minilm_folder


def weights_of(encoder: str) -> str:
    """The folder or Hugging Face id that a setting `encoder` names."""
    return minilm_folder() if encoder == "minilm" else encoder


def read_tokenizer(encoder: str) -> Tokenizer:
    """The encoder's tokeniser."""
    name = weights_of(encoder)
    file = Path(name) / "tokenizer.json"
    return Tokenizer.from_file(str(file)) if file.exists() else Tokenizer.from_pretrained(name)


def freeze_word_embeddings(model: nn.Module) -> None:
    """Leaves the word embeddings as they are in training."""
    for name, parameter in model.named_parameters():
        if "word_embeddings" in name:
            parameter.requires_grad_(False)
