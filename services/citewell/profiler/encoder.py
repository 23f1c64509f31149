"""ENC1: texts become vectors, on the CPU, without torch.

A text longer than the window is cut around its TARGETCIT, so that the marker stays in the middle. A text without one
is cut at the end. A model may ask for a shorter window around the marker (contexts.json in its folder).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from citewell.inference.batches import padded, token_batches
from citewell.inference.graphs import cache_folder, for_runtime
from citewell.inference.sessions import Precision, Runtime, Session, cpu_has_bf16, open_session
from citewell.profiler.encoder_files import DEFAULT_ENCODER, EncoderFiles, EncoderUnusable, Pooling, read_encoder_files
from citewell.profiler.turns import Turns
from citewell.runtime.worker_threads import worker_pool
from citewell.scholarly.contexts import OTHER, TARGET, normalise

# Enters the model's hash: raise it with any change to how texts are prepared.
TEXT_RULES = 1

# Precisions whose vectors agree to a cosine of 0.9999 have one model hash, so that machines with and without bf16 can
# share a ledger. int8 does not agree that well (0.9987 with OpenVINO, 0.982 with ONNX Runtime; all-MiniLM-L6-v2).
INTERCHANGEABLE = (Precision.FP32, Precision.BF16)

# Padded tokens a batch may hold. Measured on two cores: larger batches are hardly faster, hold more padding when filled
# with the few texts of one publication, and keep a query waiting longer.
BATCH_TOKENS = 512

# On CPUs with AMX, OpenVINO 2026.4 computes a graph with int8 weights wrongly in bf16, with several streams, unless its
# width is a multiple of this (cosines of -0.7 at a width of 16, 1.0 at 32, 64 and 384).
BF16_WIDTH = 32


class TextEncoder(Protocol):
    """ENC1 of the papers. Safe to call from several threads; the GIL is free while it computes."""

    @property
    def model_id(self) -> str:
        """The model's name, for people."""

    @property
    def model_hash(self) -> str:
        """Changes with all that changes a vector noticeably: weights, pooling, normalisation, window, text rules, int8.

        fp32 and bf16 have the same hash.
        """

    @property
    def former_hashes(self) -> frozenset[str]:
        """Hashes that older versions gave this model: fp32 and bf16 had their own."""

    @property
    def exact_hash(self) -> str:
        """Like `model_hash`, but tells fp32 from bf16 too: for caches whose vectors must not be mixed."""

    @property
    def dimension(self) -> int: ...

    @property
    def max_tokens(self) -> int: ...

    @property
    def runtime(self) -> str:
        """What computes it, for people: "openvino bf16"."""

    def cuts(self, text: str) -> bool:
        """Whether the text is longer than the window."""

    def paper_text(self, title: str, abstract: str) -> str:
        """T ⊕ A as this model wants it."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One row a text, in the given order."""


class GraphEncoder:
    """A `TextEncoder` that runs an ONNX graph."""

    def __init__(
        self,
        files: EncoderFiles,
        session: Session,
        *,
        max_tokens: int,
        strip_markers: bool,
        batch_tokens: int,
        precision: str,
        runtime: str,
    ) -> None:
        self._files = files
        self._session = session
        self._strip_markers = strip_markers
        self._batch_tokens = batch_tokens
        self.turns = Turns(session.streams)
        self._beside = worker_pool(4 * session.streams, "encoder")
        self._tokenizer = _read_tokenizer(files)
        least = 1 + self._tokenizer.num_special_tokens_to_add(is_pair=False)
        if not least <= max_tokens <= files.max_tokens:
            takes = f"takes {least} to {files.max_tokens} (0 = {files.max_tokens})"
            raise EncoderUnusable(f"max_tokens is {max_tokens}; {files.name!r} {takes}")
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._pad = self._tokenizer.token_to_id("[PAD]") or int(files.config.get("pad_token_id") or 0)
        self._separator = files.sep_token if files.pooling is Pooling.CLS else ". "
        self.model_id = files.name
        self.max_tokens = max_tokens
        self._context_tokens = min(max_tokens, files.context_tokens)
        self.runtime = runtime
        rules = {
            "weights": files.weights_hash,
            "pooling": files.pooling,
            "normalise": files.normalise,
            "max_tokens": max_tokens,
            "separator": self._separator,
            "strip_markers": strip_markers,
            "text_rules": TEXT_RULES,
        }
        if self._context_tokens < max_tokens:
            rules["context_tokens"] = self._context_tokens
        self.exact_hash = _hash(rules, precision)
        interchangeable = precision in INTERCHANGEABLE
        self.model_hash = _hash(rules, Precision.FP32) if interchangeable else self.exact_hash
        self.former_hashes = frozenset(_hash(rules, each) for each in INTERCHANGEABLE if interchangeable)
        self.dimension = int(self._encode_batch([self._tokenizer.encode("")]).shape[1])

    def paper_text(self, title: str, abstract: str) -> str:
        return self._separator.join(part for part in (normalise(title), normalise(abstract)) if part)

    def cuts(self, text: str) -> bool:
        prepared, target = self._prepared(text)
        return len(self._tokenizer.encode(prepared)) > self._longest(target)

    def encode(self, texts: Sequence[str], *, apart: bool = False) -> NDArray[np.float32]:
        """One row a text. `apart`: a batch a text, so that no bit of a vector depends on the other texts."""
        tokens = self.tokenize(texts)
        out = np.empty((len(texts), self.dimension), np.float32)
        lengths = [len(encoding) for encoding in tokens]
        left = sum(lengths)
        pieces = SimpleQueue[tuple[NDArray[np.int64], int]]()
        # A query's few texts are spread over the cores as well, so that none idles.
        budget = 1 if apart else min(self._batch_tokens, math.ceil(left / self._session.streams))
        for batch in token_batches(lengths, budget):
            pieces.put((batch, left))
            left -= sum(lengths[i] for i in batch)

        def work() -> None:
            with suppress(Empty):
                while True:
                    batch, left = pieces.get_nowait()
                    with self.turns.turn(left):
                        out[batch] = self._encode_batch([tokens[i] for i in batch])

        others = [self._beside.submit(work) for _ in range(self._session.streams - 1)]
        work()
        for other in others:
            if not other.cancel():  # it was cancelled before it started: the queue is empty by now
                other.result()
        return out

    def tokenize(self, texts: Sequence[str]) -> list[Encoding]:
        """The tokens the model will see, the cut made and the special ones added."""
        prepared = [self._prepared(text) for text in texts]
        encodings = self._tokenizer.encode_batch([text for text, _ in prepared], add_special_tokens=False)
        special = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        for encoding, (_, target) in zip(encodings, prepared, strict=True):
            room = self._longest(target) - special
            if len(encoding) > room:
                middle = _token_at(encoding, target) if target is not None else 0
                start, end = centred(len(encoding), middle, room)
                encoding.truncate(end)
                encoding.truncate(end - start, direction="left")
        return [self._tokenizer.post_process(encoding) for encoding in encodings]

    def _longest(self, target: int | None) -> int:
        """How many tokens of a text are read, with a marker at `target` or without one."""
        return self.max_tokens if target is None else self._context_tokens

    def _prepared(self, text: str) -> tuple[str, int | None]:
        """The text as it is tokenised, and where in it the target is."""
        # The tokeniser refuses a whole batch for one lone surrogate, which is not valid UTF-8.
        text = normalise(text.encode("utf-8", "replace").decode("utf-8"))
        at = text.find(TARGET)
        if at < 0:
            return text, None
        if self._strip_markers:
            before, after = text[:at], text[at + len(TARGET) :]
            before = normalise(before.replace(OTHER, " "))
            return f"{before} {normalise(after.replace(OTHER, ' '))}", len(before)
        return text, at

    def _encode_batch(self, encodings: list[Encoding]) -> NDArray[np.float32]:
        mask = padded([encoding.attention_mask for encoding in encodings], 0)
        inputs = {
            "input_ids": padded([encoding.ids for encoding in encodings], self._pad),
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(mask),
        }
        states = self._session.run(inputs)[0]
        if self._files.pooling is Pooling.CLS:
            vectors = states[:, 0]
        else:
            weights = mask[:, :, None].astype(np.float32)
            vectors = (states * weights).sum(axis=1) / weights.sum(axis=1)
        if self._files.normalise:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors.astype(np.float32, copy=False)


def _hash(rules: dict[str, object], precision: str) -> str:
    return hashlib.sha256(json.dumps(rules | {"precision": precision}, sort_keys=True).encode()).hexdigest()[:16]


def _read_tokenizer(files: EncoderFiles) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(files.tokenizer))
    except Exception as error:  # the library raises no narrower class
        raise EncoderUnusable(f"encoder {files.name!r}: tokenizer.json cannot be read: {error}") from None


def centred(length: int, middle: int, room: int) -> tuple[int, int]:
    """The window of `room` positions out of `length` with `middle` as near its centre as the ends allow."""
    start = min(max(0, middle - room // 2), max(0, length - room))
    return start, min(length, start + room)


def _token_at(encoding: Encoding, character: int) -> int:
    """The first token that ends after the given character (a stripped marker leaves a blank, which has no token)."""
    return next((i for i, (_, end) in enumerate(encoding.offsets) if end > character), len(encoding) - 1)


def load_encoder(
    name: str = DEFAULT_ENCODER,
    *,
    runtime: str = Runtime.OPENVINO,
    precision: str = "auto",
    max_tokens: int = 0,
    strip_markers: bool = False,
    threads: int = 0,
    batch_tokens: int = BATCH_TOKENS,
    cache: Path | None = None,
    allow_download: bool = False,
) -> GraphEncoder:
    """The encoder of a folder, a Hugging Face id, or the packaged default.

    `precision` auto is bf16 where OpenVINO has it on this CPU and the model is as wide as it needs, and fp32 elsewhere;
    the two are interchangeable.
    `max_tokens` = 0 is the model's own limit, `threads` = 0 all cores.
    Nothing is downloaded unless `allow_download`.
    """
    files = read_encoder_files(name, allow_download=allow_download)
    engine = Runtime(runtime)
    if precision == "auto":
        fits = files.config.get("hidden_size", 0) % BF16_WIDTH == 0
        precision = Precision.BF16 if engine is Runtime.OPENVINO and fits and cpu_has_bf16() else Precision.FP32
    wanted = Precision(precision)
    folder = cache or cache_folder()
    try:
        graph = for_runtime(files.build_graph(folder), folder, engine, wanted)
        session = open_session(graph, engine, wanted, threads, side_by_side=True)
    except ValueError as error:
        raise EncoderUnusable(f"{error}") from error
    return GraphEncoder(
        files,
        session,
        max_tokens=max_tokens or files.max_tokens,
        strip_markers=strip_markers,
        batch_tokens=batch_tokens,
        # The two runtimes quantise differently, so their int8 vectors differ.
        precision=f"{wanted}-{engine}" if wanted is Precision.INT8 else wanted,
        runtime=f"{engine} {wanted}",
    )
