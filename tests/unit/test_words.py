"""Words and term ids, which services and lab share."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from citewell.scholarly.words import count_terms, located_words, term_id, words


def test_words_are_lower_case_and_singular_without_function_words_and_other_markers() -> None:
    text = "The Parsers of OTHERCIT use grammars; studies by TARGETCIT focus on loss."
    assert words(text) == ["parser", "use", "grammar", "study", "targetcit", "focus", "loss"]


def test_the_marker_counts_as_no_term() -> None:
    assert count_terms("parsers TARGETCIT parser") == {term_id("parser"): 2}


def test_a_term_id_is_the_crc_32_of_the_word() -> None:
    assert term_id("parser") == zlib.crc32(b"parser")


@given(st.text())
def test_located_words_stand_where_they_say(text: str) -> None:
    located = located_words(text)
    assert all(0 <= word.offset < word.offset + word.length <= len(text) for word in located)
    assert [word.normal for word in located] == words(text)


def test_a_letter_that_lower_case_makes_longer_is_found_where_it_stands() -> None:
    text = "Parsers in İstanbul and İzmir, ΑΣ.Α"  # one İ becomes two characters, Σ depends on what follows
    located = located_words(text)
    assert [word.normal for word in located] == words(text)
    assert [text[word.offset : word.offset + word.length] for word in located][:3] == ["Parsers", "stanbul", "zmir"]
