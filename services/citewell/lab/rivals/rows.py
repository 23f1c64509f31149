"""Rows of tables: what one system reached in one run. A row once computed is kept under the hash of its settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citewell.lab.metrics import Values, per_query


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """What a run of a system gave."""

    values: Mapping[str, Values]
    """Metric → the value of each query, between 0 and 1; or the ranks of the cited papers under "rank"."""
    retrieval_ms: float
    """CPU milliseconds a query of all threads, ranking included; preparation of the corpus is not."""
    rerank_ms: float = 0.0
    prepare_minutes: float = 0.0
    """CPU minutes to build what retrieval needs: the papers' vectors, say."""

    @classmethod
    def of_ranks(cls, ranks: NDArray[np.int64], retrieval_ms: float, rerank_ms: float = 0.0, **more: float) -> Measured:
        """From the rank of each query's cited paper, 0 where it was not returned."""
        return cls({"rank": ranks.astype(np.float64)}, retrieval_ms, rerank_ms, **more)


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A row as it is kept."""

    name: str
    title: str
    measured: Measured
    train_minutes: float
    """CPU minutes of training; 0 where nothing is trained."""
    about: Mapping[str, Any]
    """Everything the row depends on, and the commit it was made with."""

    def per_query(self, metric: str) -> Values:
        """The metric of each query: as measured, or from the ranks."""
        found = self.measured.values.get(metric)
        if found is not None:
            return found
        return per_query(metric, self.measured.values["rank"].astype(np.int64))

    def first(self, queries: int) -> Row:
        """The row of the first queries alone."""
        values = {name: each[:queries] for name, each in self.measured.values.items()}
        return replace(self, measured=replace(self.measured, values=values))

    def mean(self, metric: str) -> float:
        """The metric in %."""
        return 100.0 * float(self.per_query(metric).mean())


@dataclass(frozen=True, slots=True)
class RowStore:
    """The folder of kept rows: NAME-HASH.json and NAME-HASH.npz."""

    folder: Path
    commit: str = "unknown"

    def row(
        self, name: str, title: str, about: Mapping[str, Any], train_minutes: float, make: Callable[[], Measured]
    ) -> Row:
        """The kept row of these settings, else the one that `make` measures now.

        `about` must hold all that the figures depend on as JSON: data set, split, sample, settings, kept weights.
        """
        text = json.dumps(about, sort_keys=True)
        stem = self.folder / f"{name}-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"
        file, arrays = Path(f"{stem}.json"), Path(f"{stem}.npz")
        if not file.exists():
            made = make()
            self.folder.mkdir(parents=True, exist_ok=True)
            np.savez(arrays, allow_pickle=False, **made.values)
            times = {
                "retrieval_ms": made.retrieval_ms,
                "rerank_ms": made.rerank_ms,
                "prepare_minutes": made.prepare_minutes,
            }
            stated = {"about": about, "times": times, "train_minutes": train_minutes, "commit": self.commit}
            file.write_text(json.dumps(stated, indent=1), "utf-8")
        kept = json.loads(file.read_text("utf-8"))
        with np.load(arrays) as values:
            measured = Measured({key: values[key] for key in values.files}, **kept["times"])
        return Row(name, title, measured, kept["train_minutes"], {**kept["about"], "commit": kept["commit"]})
