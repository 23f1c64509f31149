"""A small data set prepared for the rivals: topics that words tell, as in `lab_sets`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from citewell.lab.dataset import Dataset, read_dataset
from citewell.lab.experiment import Experiment
from citewell.lab.knowledge import citations, profile_table
from citewell.lab.protocol import Mode, make_task
from citewell.lab.retrieval import IdOrder
from citewell.lab.rivals.word_vectors import tokens
from tests.lab_sets import invented, vectors_of, write_lines


def small_experiment(folder: Path, papers: int = 96, split: str = "validation") -> Experiment:
    """An invented set with bags of words as vectors; contexts name the method that the cited paper's title names."""
    records, contexts, splits = invented(papers)
    for context in contexts:
        context["text"] = context["text"].replace("alias", "method")
    data = read_dataset(write_lines(folder / "set", records, contexts, splits))
    vectors, task = vectors_of(data), make_task(data, split, Mode.INDUCTIVE)
    known = citations(data, task.knowledge)
    return Experiment(data, task, vectors, known, profile_table(known, vectors), IdOrder(data))


def write_word_vectors(file: Path, data: Dataset, size: int) -> Path:
    """A random vector for every word of a set, in GloVe's text format."""
    texts = [*data.papers.titles, *data.papers.abstracts, *data.contexts.texts]
    rng = np.random.default_rng(3)
    found = sorted({word for text in texts for word in tokens(text)})
    lines = (" ".join([word, *(f"{value:.4f}" for value in rng.normal(size=size))]) for word in found)
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return file
