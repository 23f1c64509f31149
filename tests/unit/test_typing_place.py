"""The citation that is being typed, and its context."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citewell.editor.typing_place import typing_place
from citewell.manuscripts.drafts import Format
from citewell.scholarly.contexts import count_targets


@pytest.mark.parametrize(
    ("draft", "format_", "typed", "keys"),
    [
        (r"Trees \cite{|} grow.", Format.LATEX, "", set()),
        (r"Trees \citep[see][p. 3]{knu| grow.", Format.LATEX, "knu", set()),
        (r"Trees \cite{old, kn|, more} grow.", Format.LATEX, "kn", {"old", "more"}),
        (r"Trees \textbf{that \cite{kn| are tall} grow.", Format.LATEX, "kn", set()),
        (r"Trees\footnote{See \cite{kn|}.} grow.", Format.LATEX, "kn", set()),
        (r"Trees\footnote{See \cite{kn|} grow.", Format.LATEX, "kn", set()),
        ("Trees \\cite{\n  old, % not new, {\n  kn|,\n  more\n} grow.", Format.LATEX, "kn", {"old", "more"}),
        ("Trees \\citep[see\n there]{old,\n|} grow.", Format.LATEX, "", {"old"}),
        ("Trees \\cite{old,\n  |\n grow.", Format.LATEX, "", {"old"}),
        (r"Trees \parencites(see)[3]{old, x}[4]{kn|}[5]{more} grow.", Format.LATEX, "kn", {"old", "x", "more"}),
        (r"Trees \cites{old}{kn| grow.", Format.LATEX, "kn", {"old"}),
        (r"Trees \cite{|old} grow.", Format.LATEX, "", {"old"}),
        ("Trees [@old;\n@kn|;\n@more] grow.", Format.MARKDOWN, "kn", {"old", "more"}),
        ("Trees [@| grow.", Format.MARKDOWN, "", set()),
        ("Trees [@old; see @kn|] grow.", Format.MARKDOWN, "kn", {"old"}),
        ("Trees by @kn| grow.", Format.MARKDOWN, "kn", set()),
    ],
)
def test_a_citation_in_the_making_is_found(draft: str, format_: Format, typed: str, keys: set[str]) -> None:
    cursor = draft.index("|")
    place = typing_place(draft.replace("|", ""), cursor, format_)
    assert place is not None
    assert (place.typed, set(place.keys)) == (typed, keys)
    assert place.context.startswith("Trees")
    assert place.context.endswith("grow.")
    assert count_targets(place.context) == 1


@pytest.mark.parametrize(
    ("draft", "format_", "tail"),
    [
        (r"Trees \cite{old, kn|uth1968, more} grow.", Format.LATEX, "uth1968"),
        (r"Trees \cite{|knuth1968} grow.", Format.LATEX, ""),
        (r"Trees \cite{kn|grow tall.", Format.LATEX, ""),
        ("Trees [see @kn|uth:68.b, p. 3; @more] grow.", Format.MARKDOWN, "uth:68.b"),
        ("Trees by @kn|uth1968. They grow.", Format.MARKDOWN, "uth1968"),
    ],
)
def test_the_rest_of_a_key_is_known(draft: str, format_: Format, tail: str) -> None:
    place = typing_place(draft.replace("|", ""), draft.index("|"), format_)
    assert place is not None
    assert place.tail == tail
    assert place.keys <= {"old", "more", "knuth1968"}
    assert "uth" not in place.context


@pytest.mark.parametrize(
    ("draft", "format_"),
    [
        ("Trees \\cite{a\nThe next line, and| more.", Format.LATEX),
        ("Trees \\cite{a,\n\nThe| next.", Format.LATEX),
        (r"Trees \cite{a}{b| grow.", Format.LATEX),
        (r"Trees \cite{a, % b| grow.", Format.LATEX),
        ("Trees % \\cite{a,\n b| grow.", Format.LATEX),
    ],
)
def test_behind_a_citation_that_was_never_closed_nothing_is_completed(draft: str, format_: Format) -> None:
    assert typing_place(draft.replace("|", ""), draft.index("|"), format_) is None


@pytest.mark.parametrize(
    ("draft", "format_"),
    [(r"Trees \cite{a} | grow.", Format.LATEX), ("Mail me@| x", Format.MARKDOWN), ("Trees | grow.", Format.PLAIN)],
)
def test_elsewhere_nothing_is_completed(draft: str, format_: Format) -> None:
    assert typing_place(draft.replace("|", ""), draft.index("|"), format_) is None


def test_words_behind_a_key_without_a_bracket_stay_in_the_context() -> None:
    draft, cursor = r"Trees \textbf{that \cite{kn are tall} grow.", len(r"Trees \textbf{that \cite{kn")
    place = typing_place(draft, cursor, Format.LATEX)
    assert place is not None
    assert place.context == "Trees that TARGETCIT are tall grow."


@pytest.mark.parametrize(
    "draft", ["% Trees \\cite{|}", "$a \\cite{|}$", "\\begin{verbatim}\n\\cite{|}\n\\end{verbatim}"]
)
def test_in_comments_code_and_formulas_nothing_is_completed(draft: str) -> None:
    assert typing_place(draft.replace("|", ""), draft.index("|"), Format.LATEX) is None


def test_a_long_draft_is_read_around_the_cursor_only() -> None:
    far = "Far away \\textbf{words}.\n\n" * 5000
    draft = f"{far}Near \\cite{{}} words.\n\n{far}"
    place = typing_place(draft, len(far) + len("Near \\cite{"), Format.LATEX)
    assert place is not None
    assert "Near TARGETCIT words." in place.context


@given(st.text(), st.sampled_from(list(Format)), st.data())
def test_no_text_makes_it_fail(text: str, format_: Format, data: st.DataObject) -> None:
    begun = data.draw(st.sampled_from([r"\cite{", "[@", "x "]))
    at = data.draw(st.integers(0, len(text)))
    place = typing_place(text[:at] + begun + text[at:], at + len(begun), format_)
    assert place is None or count_targets(place.context) == 1
