"""Graphs written on this machine, kept in the user's cache folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from citewell.inference.sessions import Precision, Runtime

# Names quantised copies in the cache: raise it when the quantiser changes.
_QUANTIZER_VERSION = 2


def cache_folder() -> Path:
    """`citewell` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "citewell"


def cached_file(folder: Path, name: str, write: Callable[[Path], Any]) -> Path:
    """The file `name` in `folder`, written first if it is not there; two processes may ask for it at once."""
    target = folder / name
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f"{os.getpid()}-{name}"
        try:
            write(unfinished)
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
    return target


def for_runtime(graph: Path, cache: Path, runtime: Runtime, precision: Precision) -> Path:
    """The graph in the form the runtime computes fast at this precision: itself, or an int8 copy of it in `cache`."""
    if precision is not Precision.INT8:
        return graph
    from citewell.inference.quantization import quantize

    stamp = f"{graph.stem}-{graph.stat().st_size}-{graph.stat().st_mtime_ns}"
    return cached_file(
        cache, f"{stamp}-int8-{runtime}-v{_QUANTIZER_VERSION}.onnx", lambda target: quantize(graph, target, runtime)
    )
