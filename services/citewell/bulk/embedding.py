"""The encoder of a bulk build, one in each worker: the profiler's by default, or any other, on GPUs for example."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import lru_cache

from citewell.profiler.encoder_files import DEFAULT_ENCODER
from citewell.profiler.ledger.encoding import Encoder

__all__ = ["DEFAULT_ENCODER", "Embedding", "encoder_of"]


@dataclass(frozen=True, slots=True)
class Embedding:
    """Names the encoder; the same in all workers."""

    encoder: str = DEFAULT_ENCODER
    """As in CITEWELL_PROFILER__ENCODER."""
    max_tokens: int = 0
    maker: str = ""
    """module:function that makes the encoder from its name, on a GPU say; empty = the profiler's encoder on one core.
    It must state the hash of a model whose vectors it equals."""


@lru_cache(maxsize=1)
def encoder_of(embedding: Embedding) -> Encoder:
    """The encoder of this process, loaded once."""
    if not embedding.maker:
        from citewell.profiler.encoder import load_encoder

        return load_encoder(embedding.encoder, max_tokens=embedding.max_tokens, threads=1)
    module, _, name = embedding.maker.partition(":")
    try:
        maker = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"maker is {embedding.maker!r}, not module:function that can be imported: {error}") from None
    made: Encoder = maker(embedding.encoder)
    return made
