"""What stale word statistics cost: HYBRID on validation data, with statistics of the oldest papers only.

    python -m citewell.lab.stale_statistics $CITEWELL_DATA/neurips25 --cache CACHE

The papers and what is said of them are always complete. Only document frequencies and the mean length are those of the
time when so many of the papers were published, as in a view whose statistics were not made again since.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citewell.lab import chosen
from citewell.lab.dataset import Dataset
from citewell.lab.experiment import Experiment, prepare
from citewell.lab.measure import SETS
from citewell.lab.metrics import compare, means
from citewell.lab.retrieval import search
from citewell.lab.systems import Fusion
from citewell.profiler.ledger.statistics import DRIFT

SHARES = (1.0, 1 / (1 + DRIFT), 0.75, 0.5, 0.25)
TOP = 300
SEED = 7


def oldest(data: Dataset, share: float) -> NDArray[np.bool_]:
    """Which papers are among this share of all, by date and then by place in the file."""
    order = np.argsort(data.papers.first_day, kind="stable")
    counted = np.zeros(len(data.papers), np.bool_)
    counted[order[: round(share * len(order))]] = True
    return counted


def hybrid_of(experiment: Experiment, share: float) -> Fusion:
    """HYBRID with the word statistics of this share of the papers."""
    words = experiment.lexical_profile(counted=oldest(experiment.data, share))
    return Fusion(f"{share:.0%}", [(1.0, experiment.profiler), (chosen.LEXICAL, words)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the data set")
    parser.add_argument("--cache", type=Path, required=True, help="the lab's vectors")
    parser.add_argument("--queries", type=int, default=400)
    arguments = parser.parse_args()
    which = next(each for each in SETS if each.name == arguments.data.name)
    experiment = prepare(
        arguments.data, "validation", which.mode, which.encoding, arguments.cache, lambda what, done, total: None
    )
    drawn = np.random.default_rng(SEED).permutation(experiment.task.queries)[: arguments.queries]
    experiment = replace(experiment, task=replace(experiment.task, queries=np.sort(drawn)))
    clusters = experiment.data.contexts.citing[experiment.task.queries]
    fresh = None
    print("| statistics of | MRR | R@10 | R@300 | difference in MRR |\n|---|---|---|---|---|")
    for share in SHARES:
        system = hybrid_of(experiment, share)
        gold = search(system, experiment.data, experiment.task, TOP, experiment.order).gold
        fresh = gold if fresh is None else fresh
        shown = means(gold, ("MRR", "R@10", "R@300"))
        less = compare("MRR", gold, fresh, np.random.default_rng(SEED), clusters)
        figures = " | ".join(f"{shown[metric]:.2f}" for metric in ("MRR", "R@10", "R@300"))
        print(f"| {share:.0%} | {figures} | {less.mean:+.2f} [{less.low:+.2f}, {less.high:+.2f}] |", flush=True)


if __name__ == "__main__":
    main()
