"""Evidence spans: hand-made sentences, and what holds for any text."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citewell.scholarly.contexts import OTHER, TARGET
from citewell.scholarly.spans import sentences, spans


def said(context: str) -> list[str]:
    return [span.of(context) for span in spans(context)]


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        # The only group of its sentence: the whole sentence, and the piece before the group if that is shorter.
        (
            "They used ROUGE and METEOR metrics TARGETCIT for evaluating their models.",
            [
                "They used ROUGE and METEOR metrics TARGETCIT for evaluating their models",
                "They used ROUGE and METEOR metrics",
            ],
        ),
        # A group at the end: the sentence without that group.
        (
            "Context embeddings were generated using Sentence Transformers [TARGETCIT].",
            ["Context embeddings were generated using Sentence Transformers"],
        ),
        # Pieces between groups belong to the group that follows; the last group also stands for the sentence.
        (
            "They used BERT TARGETCIT, a popular language model OTHERCIT, to embed texts OTHERCIT.",
            ["They used BERT"],
        ),
        (
            "They used BERT OTHERCIT, a popular language model TARGETCIT, to embed texts OTHERCIT.",
            ["a popular language model"],
        ),
        (
            "They used BERT (OTHERCIT), a popular language model (OTHERCIT), to embed texts (see TARGETCIT).",
            [
                "to embed texts",
                "They used BERT (OTHERCIT), a popular language model (OTHERCIT), to embed texts",
            ],
        ),
        # Markers side by side are one group, in one bracket or in several.
        (
            "There are two types of approaches, extractive (OTHERCIT; OTHERCIT, TARGETCIT) and abstractive OTHERCIT.",
            ["There are two types of approaches, extractive"],
        ),
        ("Parsers of this kind [OTHERCIT]–[TARGETCIT] scale well; others [OTHERCIT] fail.", ["Parsers of this kind"]),
        ("Trees (OTHERCIT), (TARGETCIT) and chains OTHERCIT differ.", ["Trees"]),
        # Conjunctions do not begin a piece.
        ("We compare trees OTHERCIT and chains TARGETCIT here.", ["chains"]),
        # Markers that were left as printed: numbers, ranges, authors and years.
        ("Trees grow [1, 2], chains bind [3–5], and forests TARGETCIT stand.", ["forests"]),
        ("Trees grow (Knuth et al., 1993; Hoare, 1969), chains TARGETCIT bind.", ["chains"]),
        ("Trees grow Knuth et al. (1993), chains TARGETCIT bind.", ["chains"]),
        # Only authors' names before the group: the words after it.
        (
            "Knuth et al. TARGETCIT proved that trees grow, while OTHERCIT did not.",
            ["proved that trees grow, while"],
        ),
        ("TARGETCIT combine five parsers; OTHERCIT use one.", ["combine five parsers"]),
        ("Turner and Charniak (TARGETCIT) prune trees, and OTHERCIT grow them.", ["prune trees, and"]),
        # Only the sentence of the target counts.
        (
            "Deep trees overfit. As Fig. 3 and Eq. (2) show, e.g. for 3.5 million leaves, pruning helps TARGETCIT. "
            "We agree.",
            ["As Fig. 3 and Eq. (2) show, e.g. for 3.5 million leaves, pruning helps"],
        ),
        # A sentence without content words: the whole context.
        ("Trees grow well. (TARGETCIT). They do.", ["Trees grow well. (TARGETCIT). They do"]),
        ("TARGETCIT", ["TARGETCIT"]),
        # No target: the whole text, as the query of a draft without a context.
        ("Trees grow. Chains bind.", ["Trees grow. Chains bind"]),
    ],
)
def test_spans_of_hand_made_contexts(context: str, expected: list[str]) -> None:
    assert said(context) == expected


@pytest.mark.parametrize(
    "sentence",
    [
        "As shown by Markeeva et al. OTHERCIT, it works.",
        "See Figs. 2 and Sec. 4 of the book.",
        "Results, i.e. Trees, cf. Table 2, hold (w.r.t. Accuracy).",
        "The proof by D. E. Knuth is short.",
        "It takes 3.5 s in the U.S. Army.",
        "We vary e.g. N and M vs. K here.",
    ],
)
def test_an_abbreviation_ends_no_sentence(sentence: str) -> None:
    both = f"{sentence} Then it ends."
    assert [span.of(both).strip() for span in sentences(both)] == [sentence, "Then it ends."]


def test_sentences_end_at_full_stops_marks_and_quotes() -> None:
    text = 'It works TARGETCIT. OTHERCIT agree! "Do they?" (Yes.) They are of type A. We end at 3. The end'
    assert [span.of(text) for span in sentences(text)] == [
        "It works TARGETCIT. ",
        "OTHERCIT agree! ",
        '"Do they?" ',
        "(Yes.) ",
        "They are of type A. ",
        "We end at 3. ",
        "The end",
    ]


PIECES = st.sampled_from(
    [TARGET, OTHER, " ", ". ", "(", ")", "[", "]", "; ", "–", "and ", "et al. ", "Fig. ", "Knuth", " 1993", "[3]", "\n"]
)
TEXTS = st.one_of(st.text(), st.lists(st.one_of(PIECES, st.text(max_size=8))).map("".join))


@given(TEXTS)
def test_every_span_lies_inside_its_text_without_white_space_at_its_edges(text: str) -> None:
    found = spans(text)
    assert found
    assert len(set(found)) == len(found)
    for span in found:
        assert 0 <= span.offset <= span.end <= len(text)
        assert span.of(text) == span.of(text).strip()


@given(TEXTS)
def test_sentences_are_the_whole_text(text: str) -> None:
    assert "".join(span.of(text) for span in sentences(text)) == text


@given(TEXTS, TEXTS)
def test_sentences_behind_the_targets_change_nothing(text: str, more: str) -> None:
    context = f"{text.replace(TARGET, OTHER)} {TARGET} is known. "  # a context has one target
    assert spans(f"{context}We {more}")[0] == spans(f"{context}We end")[0]


@pytest.mark.parametrize("unit", [". ", ".", "(", "[1,", f"{TARGET} ", f"({OTHER} ", "Aa et al. ", "(Aa 1999; ", " ,"])
def test_no_text_takes_longer_than_in_proportion_to_its_length(unit: str) -> None:
    def seconds(length: int) -> float:
        text = f"{unit * (length // len(unit))} {TARGET} so"
        started = time.process_time()
        spans(text)
        return time.process_time() - started

    short = min(seconds(4_000) for _ in range(3))
    assert min(seconds(40_000) for _ in range(3)) < 30 * short + 0.05
