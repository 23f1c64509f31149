"""A cache of text vectors on disk by (model, text), so that no text is encoded twice.

A model's folder holds immutable segments: `NNNNN.keys.npy` (64-bit text hashes), `NNNNN.unit.npy` (vectors at
unit length, in float16), `NNNNN.norms.npy` (their original lengths) and `NNNNN.json`, which names their source and is
written last. A segment without it is ignored. Several processes may add to one cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citewell.corpora.readers import raw_members
from citewell.lab.dataset import Dataset
from citewell.lab.whole_files import written_whole
from citewell.profiler.encoder import TextEncoder
from citewell.profiler.profiles import Vectors, normalised
from citewell.scholarly.contexts import normalise

Keys = NDArray[np.uint64]
Encode = Callable[[Sequence[str]], Vectors]
_KEY = np.uint64
_BATCH = 2048
SAMPLE = 64
"""The number of texts encoded again to check that imported vectors come from the named encoder."""
SAME = 0.999


@dataclass(frozen=True, slots=True, eq=False)
class TextVectors:
    """ENC1 of every paper and every context of a data set, in the order of its rows."""

    papers: Vectors
    contexts: Vectors
    provenance: str
    """The model and the source of the vectors."""


class VectorCache:
    """The vectors of one model."""

    def __init__(self, folder: Path, model: str) -> None:
        self._folder = folder / model
        self._folder.mkdir(parents=True, exist_ok=True)
        self.model = model
        self._load()

    def _load(self) -> None:
        stems = sorted(path.with_suffix("") for path in self._folder.glob("*.json"))
        self.provenance: list[dict[str, Any]] = [json.loads(stem.with_suffix(".json").read_text()) for stem in stems]
        self._segments = [np.load(f"{stem}.unit.npy", mmap_mode="r") for stem in stems]
        self._norms = [np.load(f"{stem}.norms.npy") for stem in stems]
        keys = [np.load(f"{stem}.keys.npy") for stem in stems]
        self._keys = np.concatenate(keys) if keys else np.empty(0, _KEY)
        self._order = np.argsort(self._keys, kind="stable")

    def missing(self, keys: Keys) -> NDArray[np.int64]:
        """Positions of the keys that have no vector, each key once."""
        absent = np.flatnonzero(self._find(keys) < 0)
        _, first = np.unique(keys[absent], return_index=True)
        positions: NDArray[np.int64] = np.sort(absent[first])
        return positions

    def add(self, keys: Keys, vectors: NDArray[Any], norms: NDArray[Any], source: str) -> None:
        """Stores unit vectors and their original lengths."""
        stem = self._new_segment()
        np.save(f"{stem}.keys.npy", keys)
        np.save(f"{stem}.unit.npy", vectors.astype(np.float16))
        np.save(f"{stem}.norms.npy", norms.astype(np.float32))
        written_whole(stem.with_suffix(".json"), json.dumps({"source": source, "vectors": len(keys)}))
        self._load()

    def _new_segment(self) -> Path:
        """A name that no other process takes: its first file is created here."""
        number = len(self._segments)
        while True:
            stem = self._folder / f"{number:05}"
            try:
                Path(f"{stem}.keys.npy").touch(exist_ok=False)
            except FileExistsError:
                number += 1
            else:
                return stem

    def get(self, keys: Keys, *, raw: bool = False) -> Vectors:
        """One vector per key, normalised or as the model gave it."""
        at = self._find(keys)
        if (absent := at < 0).any():
            raise LookupError(
                f"{absent.sum()} of {len(keys)} texts have no vector of {self.model!r}: encode them first"
            )
        out = np.empty((len(keys), self._segments[0].shape[1] if self._segments else 0), np.float32)
        start = 0
        for segment, norms in zip(self._segments, self._norms, strict=True):
            rows = np.flatnonzero((at >= start) & (at < start + len(segment)))
            out[rows] = normalised(segment[at[rows] - start])
            if raw:
                out[rows] *= norms[at[rows] - start][:, None]
            start += len(segment)
        return out

    def _find(self, keys: Keys) -> NDArray[np.int64]:
        if not len(self._keys):
            return np.full(len(keys), -1, np.int64)
        at = np.searchsorted(self._keys, keys, sorter=self._order)
        found = self._order[np.minimum(at, len(self._keys) - 1)]
        positions: NDArray[np.int64] = np.where(self._keys[found] == keys, found, -1)
        return positions


def text_key(*parts: str) -> bytes:
    """The hash of a text (a context; or a title and an abstract) after normalisation."""
    return blake2b("\x1f".join(normalise(part) for part in parts).encode("utf-8", "replace"), digest_size=8).digest()


def keys_of(texts: Iterable[bytes]) -> Keys:
    """Text keys as a column."""
    return np.frombuffer(b"".join(texts), dtype=_KEY)


def paper_keys(data: Dataset) -> Keys:
    """The key of every paper's title and abstract."""
    return keys_of(text_key(*parts) for parts in zip(data.papers.titles, data.papers.abstracts, strict=True))


def context_keys(data: Dataset) -> Keys:
    """The key of every context."""
    return keys_of(text_key(text) for text in data.contexts.texts)


def text_vectors(data: Dataset, of_papers: VectorCache, of_contexts: VectorCache, *, raw: bool = False) -> TextVectors:
    """All vectors of the data set, from the cache; papers and contexts may be cut at different lengths."""
    sources = sorted({segment["source"] for cache in (of_papers, of_contexts) for segment in cache.provenance})
    return TextVectors(
        of_papers.get(paper_keys(data), raw=raw), of_contexts.get(context_keys(data), raw=raw), "; ".join(sources)
    )


def encode_missing(
    cache: VectorCache,
    keys: Keys,
    text: Callable[[int], str],
    encode: Encode,
    source: str,
    on_progress: Callable[[int, int], None],
) -> None:
    """Encodes texts that the cache lacks. Each batch is stored immediately, so a killed run resumes there."""
    missing = cache.missing(keys)
    for start in range(0, len(missing), _BATCH):
        rows = missing[start : start + _BATCH]
        vectors = encode([text(int(row)) for row in rows])
        cache.add(keys[rows], normalised(vectors), np.linalg.norm(vectors, axis=1), source)
        on_progress(min(start + _BATCH, len(missing)), len(missing))


def import_vectors(folder: Path, what: str, vectors: Path, cache: Path, encoder: TextEncoder, source: str) -> float:
    """Adds vectors from elsewhere to an encoder's cache; returns the lowest cosine of a sample encoded again.

    Row k belongs to entry k of the JSON lines in `folder`.
    """
    fields = ("title", "abstract") if what == "papers" else ("text",)
    texts = [[member[field] for field in fields] for member in raw_members(folder, what)]
    unit = np.load(vectors / f"{folder.name}.{what}.f16.npy", mmap_mode="r")
    norms = np.load(vectors / f"{folder.name}.{what}.norms.npy")
    if not len(texts) == len(unit) == len(norms):
        raise ValueError(f"{len(texts)} {what} but {len(unit)} vectors and {len(norms)} norms")
    sample = np.random.default_rng(0).choice(len(texts), min(SAMPLE, len(texts)), replace=False)
    made = encoder.encode([encoder.paper_text(*texts[at]) if what == "papers" else texts[at][0] for at in sample])
    agreement = float(np.einsum("nd,nd->n", normalised(made), normalised(unit[sample])).min())
    if agreement < SAME:
        raise ValueError(
            f"these {what} are not of {encoder.model_id}: a sample agrees to a cosine of {agreement:.4f} only"
        )
    store = VectorCache(cache, encoder.exact_hash)
    keys = keys_of(text_key(*text) for text in texts)
    rows = store.missing(keys)
    if len(rows):
        store.add(keys[rows], unit[rows], norms[rows], source)
    return agreement
