"""DAVINCI as a reranker of the tables: the model that ships, or every head of a training run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citewell.inference.sessions import Precision, cpu_has_bf16
from citewell.lab.davinci.batches import PairBatches
from citewell.lab.davinci.exported import ExportedModel, starting_point
from citewell.lab.davinci.lists import CandidateLists
from citewell.lab.davinci.retrieve import pair_texts
from citewell.lab.davinci.scoring import exported_encode, score_lists, served_encode
from citewell.lab.experiment import Experiment


class DavinciHeads:
    """A `ListReranker` by the first head; `heads` scores by all of them. It computes on the serving runtime."""

    name = "davinci"

    def __init__(self, folder: Path, experiment: Experiment) -> None:
        """`folder` is a training run or an exported model."""
        found = starting_point(folder)
        precision = Precision.BF16 if cpu_has_bf16() else Precision.FP32
        self._settings, self._model, self._tokenizer = found.settings, found.model(), found.tokenizer()
        self._texts = pair_texts(experiment, self._settings.mentions if self._settings.budget.mentions else 0)
        if isinstance(found, ExportedModel):
            self._encode = exported_encode(folder, precision, 1)
        else:
            self._encode = served_encode(found.encoder_config, self._model, precision, 1)

    def heads(self, lists: CandidateLists) -> dict[str, NDArray[np.float32]]:
        """The log-odds of each head, `[queries, k]`."""
        pairs = PairBatches(lists, self._texts, self._tokenizer, self._settings.decay)
        return {name: found.logit for name, found in score_lists(self._model, pairs, self._encode).items()}

    def scores(self, lists: CandidateLists) -> NDArray[np.float32]:
        return self.heads(lists)[self._settings.heads[0]]
