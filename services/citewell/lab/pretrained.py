"""Pretrained encoders that training starts from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer
from torch import nn
from transformers.utils import logging

from citewell.lab.davinci.model import minilm_folder


def weights_of(encoder: str) -> str:
    """The folder or Hugging Face id that a setting `encoder` names."""
    return minilm_folder() if encoder == "minilm" else encoder


def read_tokenizer(encoder: str) -> Tokenizer:
    """The encoder's tokeniser."""
    name = weights_of(encoder)
    file = Path(name) / "tokenizer.json"
    return Tokenizer.from_file(str(file)) if file.exists() else Tokenizer.from_pretrained(name)


@contextmanager
def loading_quietly() -> Iterator[None]:
    """Without the library's report on a pooling layer that is left out on purpose, and without its progress bar."""
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def freeze_word_embeddings(model: nn.Module) -> None:
    """Leaves the word embeddings as they are in training."""
    for name, parameter in model.named_parameters():
        if "word_embeddings" in name:
            parameter.requires_grad_(False)
