"""Sentences that look as if they lack a citation: their places, their scores, and the packaged weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from citewell.manuscripts.drafts import Format, read_files, read_text
from citewell.manuscripts.need import FEATURES, PACKAGED_MODEL, NeedModel, features, read_need_model
from citewell.scholarly.contexts import count_targets

NEEDY = "Recent work has proposed linear attention to reduce the quadratic cost of self-attention."
NEEDIER = "Diffusion models have been widely adopted for image generation in recent years."
CITED = r"Recent work has proposed sparse attention to reduce its memory \cite{known}."
OWN = "In Section 4 we report our results and discuss what they mean for us."
LATEX = rf"""\documentclass{{article}}
\title{{On attention}}
\begin{{document}}
\begin{{abstract}}Vision transformers have been widely adopted for image classification in recent years.\end{{abstract}}
\section{{Recent methods have been proposed for many tasks}}
{NEEDY} {OWN} {CITED}

\textbf{{Models.}} {NEEDIER}
\begin{{thebibliography}}{{9}}
\bibitem{{known}} A. Author. Deep networks have been widely adopted for natural language processing.
\end{{thebibliography}}
\end{{document}}
"""


@pytest.fixture
def model() -> NeedModel:
    return read_need_model()


def test_needy_sentences_are_places_at_their_text(model: NeedModel) -> None:
    draft = read_text(LATEX, Format.LATEX, model)
    said = [LATEX[one.citation.offset :][: one.citation.length] for one in draft.places]
    assert sorted(said) == sorted([NEEDY, NEEDIER])
    needs = [place.need or 0 for place in draft.places]
    assert needs == sorted(needs, reverse=True)
    for place in draft.places:
        assert LATEX[place.insert_at] == "."
        assert place.insert_at == place.citation.offset + place.citation.length - 1
        assert count_targets(place.context) == 1
        assert f"{LATEX[place.citation.offset : place.insert_at]} TARGETCIT." in place.context


def test_without_being_asked_nothing_is_suggested() -> None:
    assert read_text(LATEX, Format.LATEX).places == []


def test_marked_places_come_first_and_a_lower_threshold_finds_more(model: NeedModel) -> None:
    text = f"{NEEDY} {OWN} A claim without support [?] is marked."
    draft = read_text(text, Format.PLAIN, model)
    assert [place.need is None for place in draft.places] == [True, False]
    assert len(read_text(text, Format.PLAIN, replace(model, threshold=0.0)).places) == 3


def test_sentences_of_markdown_and_word_are_found(model: NeedModel) -> None:
    text = f"# Title of it\n\n{OWN}\n\n- {NEEDY}\n- `Recent work has proposed linear attention to many.`\n"
    draft = read_files({"a.md": text.encode()}, suggest=model)
    assert [text[one.citation.offset :][: one.citation.length] for one in draft.places] == [NEEDY]


def test_a_list_of_references_is_not_suggested(model: NeedModel) -> None:
    text = f"{NEEDY}\n\nReferences\n\n{NEEDIER}\n"
    assert len(read_text(text, Format.PLAIN, model).places) == 1


def test_a_sentence_with_a_marker_inside_a_word_has_one_target(model: NeedModel) -> None:
    [place] = read_text(f"xTARGETCITx is odd. {NEEDY}", Format.PLAIN, model).places
    assert count_targets(place.context) == 1


def test_the_packaged_weights_are_small_and_hold_no_text() -> None:
    assert PACKAGED_MODEL.stat().st_size < 1 << 20
    with np.load(PACKAGED_MODEL, allow_pickle=False) as stored:
        assert {name: stored[name].dtype.kind for name in stored} == {
            "weights": "i", "scale": "f", "bias": "f", "threshold": "f", "features": "U",
        }  # fmt: skip
        assert stored["weights"].dtype == np.int8
        assert str(stored["features"]) == FEATURES


def test_weights_of_other_features_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    np.savez(path, weights=np.zeros(4, np.int8), scale=1.0, bias=0.0, threshold=0.5, features=np.array("need/0"))
    with pytest.raises(ValueError, match=f"need/0; this version computes {FEATURES}"):
        read_need_model(path)


def test_marks_and_punctuation_are_no_features() -> None:
    bare = features("Recent work has proposed linear attention", 1 << 16)
    assert (features("Recent work has proposed, linear attention OTHERCIT.", 1 << 16) == bare).all()
    assert not len(features("Too few words here", 1 << 16))
    assert not len(features("word " * 81, 1 << 16))
