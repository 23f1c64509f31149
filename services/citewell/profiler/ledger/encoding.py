"""Makes fixed-point vectors of new texts: takes the publisher's vectors if they are valid, else runs the encoder."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from citewell.profiler.ledger.facts import PaperText, Text, TextKey
from citewell.profiler.profiles import Fixed, to_fixed
from citewell.runtime.errors import FailedPrecondition, Internal
from citewell.scholarly.publications import InvalidPublication

# Wait this long after a failed attempt to load an encoder.
TRY_AGAIN_SECONDS = 30.0


class NamedModel(Protocol):
    """What a view remembers of the encoder that makes its vectors."""

    @property
    def model_id(self) -> str: ...

    @property
    def model_hash(self) -> str: ...

    @property
    def former_hashes(self) -> frozenset[str]: ...

    @property
    def runtime(self) -> str: ...

    @property
    def dimension(self) -> int: ...


class Encoder(NamedModel, Protocol):
    """The text encoder (ENC1), reduced to what the ledger needs."""

    def paper_text(self, title: str, abstract: str) -> str: ...

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]: ...


@dataclass(frozen=True, slots=True)
class SuppliedVector:
    """A vector that came with a publication."""

    text_hash: bytes
    model_hash: str
    values: bytes


def is_model(encoder: NamedModel, model_hash: str) -> bool:
    """Whether the encoder's vectors are compatible with those of this model hash."""
    return model_hash == encoder.model_hash or model_hash in encoder.former_hashes


class Encoders:
    """The encoders of this process, by name. Each is loaded on first use. Thread-safe."""

    def __init__(self, load: Callable[[str], Encoder], clock: Callable[[], float] = time.monotonic) -> None:
        self._load, self._clock = load, clock
        self._by_name: dict[str, Encoder] = {}
        self._loading: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._failed: dict[str, tuple[float, FailedPrecondition]] = {}

    def named(self, name: str) -> Encoder:
        """The encoder of that name. It is loaded once, even if two threads ask at the same time."""
        if encoder := self._by_name.get(name):
            return encoder
        with self._loading[name]:
            if name not in self._by_name:
                try:
                    self._by_name[name] = self._load(name)
                except FailedPrecondition as error:
                    self._failed[name] = (self._clock(), error)
                    raise
                self._failed.pop(name, None)
            return self._by_name[name]

    def of_model(self, name: str, model_hash: str) -> Encoder:
        """The encoder of that name. Raises FailedPrecondition if it is not the model of this hash.

        After a failed attempt to load it, the next attempt waits a while, because every event calls this.
        """
        failed = self._failed.get(name)
        if failed and self._clock() - failed[0] < TRY_AGAIN_SECONDS:
            raise failed[1]
        encoder = self.named(name)
        if not is_model(encoder, model_hash):
            raise FailedPrecondition(
                f"the ledger was written by encoder {name!r} with hash {model_hash}; the one of that name here has "
                f"hash {encoder.model_hash} ({encoder.runtime}): use the same weights, longest text and kind of "
                "precision (fp32 and bf16 are interchangeable, int8 is not), or rebuild with a new encoder",
                reason="ENCODER_MISMATCH",
                found=encoder.model_hash,
                expected=model_hash,
            )
        return encoder

    def keep(self, names: Iterable[str]) -> None:
        """Releases all encoders but these. A running call keeps its own reference and ends normally."""
        for name in self._by_name.keys() - set(names):
            self._by_name.pop(name, None)


def prepared(encoder: Encoder, text: Text) -> str:
    """The encoder's input for a text. A publisher identifies the text of a vector by the SHA-256 of this input."""
    return encoder.paper_text(text.title, text.abstract) if isinstance(text, PaperText) else text.text


def supplied_vectors(
    vectors: Iterable[SuppliedVector], encoder: Encoder, texts: Mapping[TextKey, Text]
) -> dict[TextKey, Fixed]:
    """The supplied vectors made by this encoder for one of these texts. Raises InvalidPublication for invalid ones."""
    wanted = list(vectors)
    if not any(is_model(encoder, vector.model_hash) for vector in wanted):
        return {}
    keys = {hashlib.sha256(prepared(encoder, text).encode()).digest(): key for key, text in texts.items()}
    fitting = {
        number: vector
        for number, vector in enumerate(wanted)
        if is_model(encoder, vector.model_hash) and vector.text_hash in keys
    }
    size = 4 * encoder.dimension
    for number, vector in fitting.items():
        if len(vector.values) != size:
            raise InvalidPublication(
                f"vectors[{number}].values", f"{len(vector.values)} bytes", f"{size} bytes: {encoder.dimension} floats"
            )
    values = np.frombuffer(b"".join(vector.values for vector in fitting.values()), "<f4").reshape(-1, encoder.dimension)
    try:
        fixed = to_fixed(values)  # together, because each call costs as much as the conversion
    except ValueError:
        _refuse_bad_component(fitting)
        raise
    return {keys[vector.text_hash]: row for vector, row in zip(fitting.values(), fixed, strict=True)}


def _refuse_bad_component(vectors: Mapping[int, SuppliedVector]) -> None:
    """Raises InvalidPublication that names the first vector with a component that cannot be stored."""
    for number, vector in vectors.items():
        try:
            to_fixed(np.frombuffer(vector.values, "<f4"))
        except ValueError as error:
            raise InvalidPublication(f"vectors[{number}].values", "a bad component", str(error)) from None


def encode(encoder: Encoder, texts: Mapping[TextKey, Text]) -> dict[TextKey, Fixed]:
    """The vectors of all texts, encoded in one call."""
    if not texts:
        return {}
    vectors = encoder.encode([prepared(encoder, text) for text in texts.values()])
    if vectors.shape != (len(texts), encoder.dimension):
        raise Internal(f"the encoder {encoder.model_id!r} gave vectors of shape {vectors.shape}")
    return dict(zip(texts, to_fixed(vectors), strict=True))
