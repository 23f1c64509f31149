"""The report's figures, as SVG and PNG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from citewell.lab.calibration import Reliability
from citewell.lab.sweeps import Landscape

mpl.use("Agg")
mpl.rcParams["svg.hashsalt"] = "citewell"  # makes the file reproducible
from matplotlib import pyplot as plt  # noqa: E402  # after the backend is chosen

_COLOURS = plt.get_cmap("tab20").colors[::2] + plt.get_cmap("tab20").colors[1::2]
"""The strong colours first; more series than ten take the light ones."""


def landscape(made: Landscape, metrics: tuple[str, ...], title: str, stem: Path) -> None:
    """Metrics over α and β, each at its best γ (as in Fig. 1 and 5 of the Profiler paper)."""
    figure, axes = plt.subplots(1, len(metrics), figsize=(4.6 * len(metrics), 4.0), squeeze=False)
    for axis, metric in zip(axes[0], metrics, strict=True):
        alpha, beta, gamma = made.best(metric)
        grid = made.metrics[metric][made.gammas.index(gamma)]
        image = axis.imshow(grid.T, origin="lower", aspect="auto", cmap="viridis")
        axis.set_xticks(range(len(made.alphas)), [f"{value:g}" for value in made.alphas])
        axis.set_yticks(range(len(made.betas)), [f"{value:g}" for value in made.betas])
        axis.plot(made.alphas.index(alpha), made.betas.index(beta), marker="*", color="red", markersize=13)
        axis.set_xlabel("α (contexts)")
        axis.set_ylabel("β (citing papers' content)")
        axis.set_title(f"{metric}, γ = {gamma:g}: best {grid.max():.1f} at α = {alpha:g}, β = {beta:g}", fontsize=9)
        figure.colorbar(image, ax=axis)
    figure.suptitle(title)
    _save(figure, stem)


def ablation(made: Landscape, alpha: float, beta: float, title: str, stem: Path) -> None:
    """R@10 over γ with and without the public profile (as in Fig. 3)."""
    figure, axis = plt.subplots(figsize=(5.5, 3.6))
    for label, a, b in (("with the public profile", alpha, beta), ("content only (α = β = 0)", 0.0, 0.0)):
        values = [made.at("R@10", a, b, gamma) for gamma in made.gammas]
        axis.plot(made.gammas, values, marker="o", label=label)
    axis.set_xlabel("γ (context); δ = 1 - γ")
    axis.set_ylabel("R@10, %")
    axis.set_title(title)
    axis.set_ylim(bottom=0)
    axis.legend()
    _save(figure, stem)


def bars(groups: list[str], series: dict[str, list[float]], ylabel: str, title: str, stem: Path) -> None:
    """Grouped bars, one colour per series."""
    figure, axis = plt.subplots(figsize=(max(6.0, 0.9 * len(groups)), 3.8))
    axis.set_prop_cycle(color=_COLOURS)
    width = 0.8 / len(series)
    for number, (label, values) in enumerate(series.items()):
        axis.bar(np.arange(len(groups)) + width * (number - (len(series) - 1) / 2), values, width, label=label)
    axis.set_xticks(range(len(groups)), groups, rotation=30, ha="right", fontsize=8)
    axis.set_ylabel(ylabel)
    axis.set_title(title)
    _legend(axis, len(series))
    _save(figure, stem)


def _legend(axis: Any, entries: int) -> None:
    """Beside the axes where many entries would hide what is drawn."""
    if entries > 4:
        axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5))
    else:
        axis.legend(fontsize=8)


def pareto(points: Mapping[str, tuple[float, float]], title: str, stem: Path) -> None:
    """Quality (MRR) against time (ms a query); a line joins the systems that no other beats in both."""
    figure, axis = plt.subplots(figsize=(9.0, 4.4))
    best, front = -1.0, []
    ordered = sorted(points.items(), key=lambda point: (point[1][0], -point[1][1]))
    for number, (name, (ms, mrr)) in enumerate(ordered):
        axis.scatter([ms], [mrr], label=name, color=_COLOURS[number % len(_COLOURS)])
        if mrr > best:
            best = mrr
            front.append((ms, mrr))
    axis.plot([ms for ms, _ in front], [mrr for _, mrr in front], color="grey", linewidth=0.8, zorder=0)
    axis.set(xscale="log", xlabel="CPU ms a query", ylabel="MRR, %", title=title)
    _legend(axis, len(points))
    _save(figure, stem)


def recall_curves(curves: Mapping[str, tuple[list[int], list[float]]], title: str, stem: Path) -> None:
    """R@k over k, one line a system."""
    figure, axis = plt.subplots(figsize=(8.6, 4.4))
    axis.set_prop_cycle(color=_COLOURS)
    for name, (cutoffs, values) in curves.items():
        axis.plot(cutoffs, values, marker="o", markersize=3, label=name)
    axis.set(xscale="log", xlabel="k", ylabel="R@k, %", ylim=(0, 100), title=title)
    _legend(axis, len(curves))
    _save(figure, stem)


def _save(figure: Any, stem: Path) -> None:
    figure.tight_layout()
    figure.savefig(stem.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(stem.with_suffix(".png"), dpi=110)
    plt.close(figure)


def reliability(found: Mapping[str, Reliability], stem: Path) -> None:
    """Reliability diagram: confidence against the share of right items, one panel per kind of answer."""
    figure, axes = plt.subplots(1, len(found), figsize=(4.4 * len(found), 4.2), squeeze=False)
    for axis, (kind, each) in zip(axes[0], found.items(), strict=True):
        axis.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
        said, right = [one.said for one in each.bins], [one.right for one in each.bins]
        low = [one.right - one.low for one in each.bins]
        high = [one.high - one.right for one in each.bins]
        axis.errorbar(said, right, yerr=[low, high], marker="o", capsize=3)
        for one in each.bins:
            axis.annotate(
                f"{one.count:,}", (one.said, one.right), textcoords="offset points", xytext=(6, -10), fontsize=7
            )
        axis.set(xlabel="confidence", ylabel="share that is the cited paper", xlim=(0, 1), ylim=(0, 1))
        axis.set_title(f"HYBRID, {kind}: expected calibration error {each.error:.4f}", fontsize=9)
    _save(figure, stem)
