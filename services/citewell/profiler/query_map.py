"""The learned query map: v_q of HYBRID from the vectors of a query's context and of its title and abstract.

    v_q = ENC1(S) · C + ENC1(T ⊕ A) · P

C = γ·1 and P = δ·1 are eq. 4. The profiles stay as they are, so a map needs no new view.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citewell.profiler.profiles import Vectors

PACKAGED_QUERY_MAP = Path(__file__).parent / "model" / "query-map.npz"
OFF = "none"
"""The setting that applies no map."""


class BadQueryMap(ValueError):
    """The file holds no query map; says why."""


@dataclass(frozen=True, slots=True, eq=False)
class QueryMap:
    """Two matrices, and the encoder for which they were learned."""

    context: Vectors
    """C."""
    paper: Vectors
    """P."""
    encoder: str
    """`model_hash` of the encoder."""
    digest: str
    """Changes with the map; part of an answer's snapshot."""

    def vector(self, context: NDArray[Any] | None, content: NDArray[Any] | None) -> Vectors:
        """v_q; a missing part adds nothing."""
        if context is None and content is None:
            raise ValueError("a query needs a context or a title and abstract")
        mapped: Vectors = np.zeros(len(self.context), np.float32)
        for part, matrix in ((context, self.context), (content, self.paper)):
            if part is not None:
                mapped = mapped + np.asarray(part, np.float32) @ matrix
        return mapped


def read_query_map(path: Path) -> QueryMap:
    """The map in a file that `write_query_map` wrote."""
    content = path.read_bytes()
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            context, paper = (stored[name].astype(np.float32) for name in ("context", "paper"))
            encoder = str(stored["encoder"])
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise BadQueryMap(f"it is no archive of the arrays context, paper and encoder: {error}") from None
    if context.ndim != 2 or context.shape[0] != context.shape[1] or context.shape != paper.shape:
        raise BadQueryMap(f"context {context.shape} and paper {paper.shape} must be square and of one size")
    if not (np.isfinite(context).all() and np.isfinite(paper).all()):
        raise BadQueryMap("it holds numbers that are not finite")
    return QueryMap(context, paper, encoder, hashlib.sha256(content).hexdigest()[:16])


def write_query_map(path: Path, context: NDArray[Any], paper: NDArray[Any], encoder: str) -> QueryMap:
    """Writes a map in float16, and returns it as it will be read."""
    with path.open("wb") as file:
        np.savez(file, context=context.astype(np.float16), paper=paper.astype(np.float16), encoder=np.array(encoder))
    return read_query_map(path)


def find_query_map(setting: str, encoder: str) -> QueryMap | None:
    """The map of a setting for an encoder: "none", a file, or empty for the one in the package.

    Raises BadQueryMap if the file that the setting names was made for another encoder.
    """
    if setting == OFF or (not setting and not PACKAGED_QUERY_MAP.exists()):
        return None
    found = read_query_map(Path(setting) if setting else PACKAGED_QUERY_MAP)
    if found.encoder == encoder:
        return found
    if setting:
        raise BadQueryMap(f"it was made for the encoder {found.encoder}, not for {encoder}")
    return None
