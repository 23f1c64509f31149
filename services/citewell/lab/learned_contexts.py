"""Which contexts taught an encoder: checksums in its folder tell it without keeping any text.

Its vectors of these contexts look better than its vectors of others, so what reads the vectors learns from others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

FILE = "learned_contexts.npy"
"""The checksums of the contexts that may have taught the encoder of a folder, sorted."""


def checksums(contexts: Sequence[str]) -> NDArray[np.uint32]:
    """CRC-32 of each context."""
    return np.array([crc32(each.encode()) for each in contexts], np.uint32)


def write_learned(folder: Path, contexts: Sequence[str]) -> None:
    """Says of an encoder's folder that these contexts may have taught it."""
    np.save(folder / FILE, np.unique(checksums(contexts)))


def learned_from(folder: Path, contexts: Sequence[str]) -> NDArray[np.bool_]:
    """Which contexts may have taught the encoder of a folder."""
    file = folder / FILE
    if not file.is_file():
        return np.zeros(len(contexts), np.bool_)
    return np.isin(checksums(contexts), np.load(file, allow_pickle=False))
