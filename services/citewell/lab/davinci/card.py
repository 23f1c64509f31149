"""The readable files of a run folder: the curves as a figure, and the model card."""

from __future__ import annotations

from typing import Any

import matplotlib

from citewell.lab.davinci.runs import RunFolder

_SMOOTHED = 25
"""The number of steps averaged for a point of the loss curve."""


def write_curves(run: RunFolder) -> None:
    """Draws `curves.svg`: the loss and the validation MRR of every head."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    log, validated = run.log(), [entry for entry in run.log() if "validation_mrr" in entry]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    for head in run.settings.heads:
        losses = [entry["loss"][head] for entry in log]
        windows = [losses[max(0, at - _SMOOTHED) : at + 1] for at in range(len(losses))]
        left.plot([entry["step"] for entry in log], [sum(some) / len(some) for some in windows], label=head)
        measured = [entry["validation_mrr"][head] for entry in validated]
        right.plot([entry["step"] for entry in validated], measured, marker="o", label=head)
    left.set(xlabel="step", ylabel=f"loss, mean of {_SMOOTHED} steps")
    right.set(xlabel="step", ylabel="validation MRR, %")
    right.legend()
    figure.tight_layout()
    figure.savefig(run.path / "curves.svg", metadata={"Date": None})
    pyplot.close(figure)


def write_card(run: RunFolder, data_name: str, vectors: str) -> None:
    """Writes `card.md`: what the model is, what it was trained on, how, and what it reached."""
    settings, log = run.settings, run.log()
    validated: list[dict[str, Any]] = [entry for entry in log if "validation_mrr" in entry]
    best = max(validated, key=lambda entry: float(entry["validation_mrr"][settings.heads[0]]))
    kept = validated[-1] if settings.keep == "last" else best
    rows = [f"| {name} | {mrr:.2f} |" for name, mrr in kept["validation_mrr"].items()]
    pairs = log[-1]["step"] * settings.accumulate * settings.queries_per_batch * (1 + settings.sampling.count)
    text = f"""# {settings.heads[0]}: a reranker of citation candidates

Scores pairs of a citation context and a candidate paper, given the candidate's rank in retrieval.

- **Encoder**: {settings.encoder}, {run.encoder_config["num_hidden_layers"]} layers; inputs: {settings.budget}.
- **Data**: train split of {data_name}; candidates by `{settings.candidates}` (k = {settings.depth}),
  {"without" if settings.leave_one_out else "with"} the query paper's own citations; retrieval vectors: {vectors}.
- **Training**: {log[-1]["step"]} steps, {pairs:,} pairs, loss {settings.loss}, seed {settings.seed},
  {settings.precision}; all settings are in `settings.json`.
- **Kept**: step {kept["step"]}, the {settings.keep} of {len(validated)} validations
  on {settings.validation_queries} queries.

| head | validation MRR, % |
|---|---|
{chr(10).join(rows)}
"""
    (run.path / "card.md").write_text(text, encoding="utf-8")
