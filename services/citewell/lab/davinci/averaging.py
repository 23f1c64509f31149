"""The mean of the weights of a trained DAVINCI and of the model that it started from.

Training on teaches new things and forgets old ones. The mean keeps much of both, and costs no more to serve than one
model. It means something only for models of one origin.
"""

from __future__ import annotations

from pathlib import Path

import torch

from citewell.lab.davinci.exported import starting_point
from citewell.lab.davinci.runs import RunFolder


def write_mean(run: RunFolder, other: Path, out: Path) -> RunFolder:
    """Writes a run folder with the mean of the weights of `run` and of the run or exported model in `other`."""
    model, settings = run.model(), run.settings
    own, others = model.state_dict(), starting_point(other).model(settings.apart).state_dict()
    shared = own.keys() & others.keys()  # heads that only the run has stay as they are
    if not shared or any(own[name].shape != others[name].shape for name in shared):
        raise ValueError(f"{run.path} and {other} have weights of other shapes: they are not of one origin")
    model.load_state_dict(own | {name: torch.lerp(others[name], own[name], 0.5) for name in shared})
    written = RunFolder(out)
    written.write_static(settings, run.encoder_config, run.tokenizer_file)
    written.save_weights(model)
    return written
