import re
import time

import pytest
from hypothesis import example, given, settings
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


def mask_each_text(passage: Passage) -> list[MaskedContext]:
    """A simple reference for masking: the whole text is masked, normalised and cut again for every target."""
    markers = sorted(passage.markers, key=lambda marker: marker.offset)
    brackets: dict[object, list[CitationMarker]] = {}
    for index, marker in enumerate(markers):
        brackets.setdefault(marker.group or ("alone", index), []).append(marker)
    contexts = []
    for members in brackets.values():
        group_size = len({cited for marker in members for cited in marker.reference_ids})
        for target in members:
            pieces, end = [], 0
            for marker in markers:
                pieces += [passage.text[end : marker.offset], " ", TARGET if marker is target else OTHER, " "]
                end = marker.offset + marker.length
            text = re.sub(r" +([.,;:)\]])", r"\1", "".join([*pieces, passage.text[end:]]))
            text = window(normalise(re.sub(rf"{OTHER}(?:[\s,;]+{OTHER})+", OTHER, text)))
            contexts += [MaskedContext(text, cited, group_size) for cited in target.reference_ids]
    return contexts


# Separators of citations, characters that NFC changes, several kinds of blanks, and the mask words themselves.
odd = st.sampled_from(
    [*" .,;:)]a\n\t", "e\u0301", "\u030c", "\u037e", "\u2000", "\x1f", TARGET, OTHER, f"x{OTHER}", "word " * 70]
)


@st.composite
def passages(draw: st.DrawFn) -> Passage:
    text, markers = "", []
    for number in range(draw(st.integers(0, 8))):
        text += "".join(draw(st.lists(odd, max_size=5)))
        length = draw(st.integers(1, 4))
        ids = tuple(draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=2)))
        markers.append(CitationMarker(len(text), length, ids, draw(st.integers(0, 2))))
        text += f"[{number}]      "[:length]
    return Passage(text + "".join(draw(st.lists(odd, max_size=5))), tuple(draw(st.permutations(markers))))


@settings(max_examples=300, deadline=None)
@example(Passage(f"{OTHER}\u030c [1]", (CitationMarker(10, 3, ("a",)),)))
@example(Passage(f"{TARGET} far away {'word ' * 200} [1]", (CitationMarker(1020, 3, ("a",)),)))
@given(passages())
def test_masking_all_targets_at_once_gives_what_masking_each_text_gives(passage: Passage) -> None:
    assert mask(passage) == mask_each_text(passage)


def test_ten_times_as_many_markers_take_about_ten_times_as_long() -> None:
    def seconds(count: int) -> float:
        markers = tuple(CitationMarker(10 * number, 5, (f"p{number}",)) for number in range(count))
        passage = Passage("[cit] word" * count, markers)
        times = []
        for _ in range(5):
            start = time.process_time()
            assert len(mask(passage)) == count
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(2000) < 30 * seconds(200)  # masking each text takes 100 times as long
