import pytest
from hypothesis import given
from hypothesis import strategies as st

from citewell.scholarly.contexts import (
    OTHER,
    TARGET,
    CitationMarker,
    MaskedContext,
    Passage,
    count_targets,
    mask,
    normalise,
    window,
)

words = st.text(alphabet="abcdefgh éß", max_size=800)


@given(words, words, st.integers(0, 400))
def test_a_window_keeps_the_target_and_no_more_than_its_radius(before: str, after: str, radius: int) -> None:
    cut = window(f"{before} {TARGET} {after}", radius)
    assert count_targets(cut) == 1
    at = cut.index(TARGET)
    assert at <= radius
    assert len(cut) - at - len(TARGET) <= radius


def test_a_window_is_cut_between_words() -> None:
    assert window(f"alpha beta gamma {TARGET} delta epsilon", 12) == f"beta gamma {TARGET} delta"


def test_text_without_a_target_has_no_window() -> None:
    with pytest.raises(ValueError, match=TARGET):
        window("nothing is marked")


@given(st.text())
def test_normal_form_is_stable(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


def test_every_marker_of_a_passage_becomes_the_target_once_for_each_paper_it_cites() -> None:
    text = "As shown [1, 2], graphs help; others disagree [3]."
    first = CitationMarker(text.index("[1"), len("[1, 2]"), ("a", "b"))
    second = CitationMarker(text.index("[3"), len("[3]"), ("c",))
    assert mask(Passage(text, (second, first))) == [
        MaskedContext(f"As shown {TARGET}, graphs help; others disagree {OTHER}.", "a", 2),
        MaskedContext(f"As shown {TARGET}, graphs help; others disagree {OTHER}.", "b", 2),
        MaskedContext(f"As shown {OTHER}, graphs help; others disagree {TARGET}.", "c", 1),
    ]


def test_a_run_of_other_citations_is_one_and_a_split_bracket_is_counted_whole() -> None:
    text = "Early work [1] [2] [3] led here."
    markers = tuple(CitationMarker(text.index(f"[{n}]"), 3, (f"p{n}",), group=7 if n < 3 else 0) for n in (1, 2, 3))
    contexts = {context.cited_id: context for context in mask(Passage(text, markers))}
    assert contexts["p3"] == MaskedContext(f"Early work {OTHER} {TARGET} led here.", "p3", 1)
    assert contexts["p1"].group_size == contexts["p2"].group_size == 2


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), words)
def test_masking_any_passage_leaves_exactly_one_target(gaps: list[int], filler: str) -> None:
    text, markers = filler, []
    for number, gap in enumerate(gaps):
        text += " " * gap
        markers.append(CitationMarker(len(text), 3, (f"p{number}",)))
        text += f"[{number}]"
    contexts = mask(Passage(text, tuple(markers)))
    assert [context.cited_id for context in contexts] == [f"p{number}" for number in range(len(gaps))]
    assert all(count_targets(context.text) == 1 for context in contexts)
