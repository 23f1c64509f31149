"""`citewell train citation-need`: learns which sentences look as if they need a citation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.markdown import Markdown

from citewell.lab.citation_need import Examples, Trained, area, examples, precision_and_recall, train
from citewell.lab.commands.options import SEED, Data, failing_clearly, writable
from citewell.lab.dataset import read_dataset
from citewell.manuscripts.need import read_need_model


def citation_need(
    data: Data,
    out: Annotated[Path, typer.Option(help="The .npz file of weights.", callback=writable)],
    also: Annotated[
        list[Path] | None, typer.Option(help="Folder of another data set to measure on; may be repeated.", exists=True)
    ] = None,
    page: Annotated[Path | None, typer.Option(help="Writes the figures here as Markdown.", callback=writable)] = None,
) -> None:
    """Learns from the train split, chooses penalty and threshold on validation, and measures on test."""
    with failing_clearly():
        dataset = read_dataset(data)
        learn, validate = examples(dataset, "train"), examples(dataset, "validation")
        trained = train(learn, validate)
        trained.write(out)
        read_need_model(out)  # what could not be read is not left behind unnoticed
        tests = [examples(dataset, "test"), *(examples(read_dataset(folder), "test") for folder in also or [])]
    names = [data.resolve().name, *(folder.resolve().name for folder in also or [])]
    told = [
        f"Learnt from {len(learn):,} sentences of {names[0]}, {learn.cites.mean():.1%} of which cite; ridge penalty "
        f"{trained.penalty:g}; threshold {trained.threshold:.2f}; {out.stat().st_size / 1000:.0f} kB."
    ]
    told += [_figures(name, trained, test) for name, test in zip(names, tests, strict=True)]
    Console().print(Markdown("\n\n".join(told)))
    if page:
        page.write_text("\n\n".join(told) + "\n", encoding="utf-8")


def _figures(name: str, trained: Trained, test: Examples) -> str:
    scores = trained.scores(test)
    rng = np.random.default_rng(SEED)
    choices = {f"scorer at {trained.threshold:.2f} (the threshold)": scores >= trained.threshold}
    choices |= {f"scorer at {each:.2f}": scores >= each for each in (0.4, 0.5, 0.6, 0.8)}
    choices |= {"always": np.ones(len(test), np.bool_), "never": np.zeros(len(test), np.bool_)}
    rows = []
    for what, chosen in choices.items():
        precision, recall = precision_and_recall(chosen, test, rng)
        rows.append(f"| {what} | {precision or 'none suggested'} | {recall} |")
    lines = "\n".join(rows)
    return f"""Test sentences of {name}: {len(test):,}, {test.cites.mean():.1%} of which cite. One that cites scores
above one that does not with a probability of {area(trained, test):.3f}.

| suggested | precision, % | recall, % |
| --- | --- | --- |
{lines}"""
