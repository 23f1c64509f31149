"""Training the scorer of sentences that need a citation: its examples, its figures, and the command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from citewell.lab.citation_need import Examples, cites, examples, precision_and_recall, whole_sentences
from citewell.lab.commands.train import app
from citewell.lab.dataset import read_dataset
from citewell.manuscripts.need import read_need_model
from tests.lab_sets import write_lines


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("Linear attention is cheaper than full attention TARGETCIT.", True),
        ("Linear attention OTHERCIT is cheaper.", None),  # too little before the marker to tell it is no part
        ("The proof is given in TARGETCIT.", None),
        ("We follow TARGETCIT here.", None),
        ("We report all results below.", False),
        ("This was shown by Knuth et al. (1968) before.", None),
    ],
)
def test_a_sentence_serves_as_an_example_if_its_marker_leaves_no_gap(sentence: str, expected: bool | None) -> None:
    assert cites(sentence) is expected


def test_sentences_that_the_window_cut_are_left_out() -> None:
    context = f"end of a long one. {'Filler words. ' * 30}A method exists TARGETCIT. And then the text is"
    said = list(whole_sentences(context))
    assert said[0] == "Filler words."
    assert said[-1] == "A method exists TARGETCIT."


def _set(folder: Path) -> Path:
    """Ten citing papers whose sentences with citations speak of others, and all others of themselves."""
    papers = [{"id": "old", "title": "Old", "abstract": "", "year": 2000, "venue": ""}]
    papers += [{"id": f"p{n}", "title": f"Paper {n}", "abstract": "", "year": 2010, "venue": ""} for n in range(10)]
    contexts = [
        {
            "id": f"c{paper}-{topic}",
            "citing_id": f"p{paper}",
            "cited_id": "old",
            "text": f"Many methods have been proposed for topic{letter}{'ab'[paper % 2]} in recent work TARGETCIT. "
            f"Then we show our own results on topic{letter}{'ab'[paper % 2]} in this section.",
            "year": 2010,
        }
        for paper in range(10)
        for topic, letter in enumerate("qrstuvwxyz")
    ]
    splits = {"train": [f"p{n}" for n in range(6)], "validation": ["p6", "p7"], "test": ["p8", "p9"]}
    return write_lines(folder, papers, contexts, splits)


def test_the_command_learns_measures_and_writes_what_the_service_reads(tmp_path: Path) -> None:
    data, out, page = _set(tmp_path / "set"), tmp_path / "need.npz", tmp_path / "need.md"
    result = CliRunner().invoke(
        app, ["citation-need", str(data), "--out", str(out), "--also", str(data), "--page", str(page)]
    )
    assert result.exit_code == 0, result.output
    model = read_need_model(out)
    assert model.score("Many methods have been proposed for parsing in recent work.") > model.threshold
    assert model.score("Then we show our own results on parsing in this section.") < model.threshold
    told = page.read_text()
    assert "| scorer at 0.50 | 100.0 [100.0, 100.0] | 100.0 [100.0, 100.0] |" in told
    assert "| always | 50.0 [50.0, 50.0] | 100.0 [100.0, 100.0] |" in told
    assert "| never | none suggested | 0.0 [0.0, 0.0] |" in told
    assert told.count("Test sentences of set") == 2


def test_a_sentence_that_occurs_in_several_contexts_of_a_paper_counts_once(tmp_path: Path) -> None:
    data = _set(tmp_path / "set")
    repeated = (data / "contexts.jsonl.gz").read_bytes() * 2  # gzip members follow each other
    (data / "contexts.jsonl.gz").write_bytes(repeated)
    assert len(examples(read_dataset(data), "test")) == 40


def test_intervals_follow_citing_papers() -> None:
    dummy = Examples(None, np.array([True, True, False, False]), np.array([1, 1, 2, 2]))  # type: ignore[arg-type]
    precision, recall = precision_and_recall(np.array([True, False, True, False]), dummy, np.random.default_rng(1))
    assert precision is not None
    assert (precision.value, recall.value) == (50.0, 50.0)
    assert (precision.low, precision.high) == (0.0, 100.0)  # each paper is drawn or not as a whole
