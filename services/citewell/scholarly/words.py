"""Words of a text, and the term ids that stand for them in profiles, searches and statistics."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from citewell.scholarly.contexts import OTHER, TARGET

LEXICON = "words/1"
"""Names the rules of this module. Counts made by other rules cannot be compared, so a change needs a new name."""

_WORD = re.compile(r"\w\w+")
_FUNCTION_WORDS = """
    a al also an and are as at be been but by can et for from has have if in into is it its no not of on or our such
    than that the their then there these they this to was we where which while will with
"""
_LEFT_OUT = frozenset({*_FUNCTION_WORDS.split(), OTHER.lower()})
_TARGET = TARGET.lower()
_MARKER = re.compile(rf"\b{TARGET}\b")


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a text, normalised, and where it stands in the text (code points)."""

    normal: str
    offset: int
    length: int

    @property
    def is_target(self) -> bool:
        """Whether it is the marker of the missing citation, or a word that is equal to it in lower case."""
        return not is_term(self.normal)


def words(text: str) -> list[str]:
    """The words of a text, lower case and singular, without function words and markers of other citations.

    The marker of the missing citation is among them.
    """
    return [normal for word in _WORD.findall(text.lower()) if (normal := _normal(word))]


def located_words(text: str) -> list[Word]:
    """The same words with their places."""
    lowered = text.lower()
    place: Sequence[int] = range(len(text))
    if len(lowered) != len(text):  # "İ" becomes two characters
        place = [at for at, letter in enumerate(text) for _ in letter.lower()]
    located = []
    for match in _WORD.finditer(lowered):
        if normal := _normal(match.group()):
            first, last = place[match.start()], place[match.end() - 1]
            located.append(Word(normal, first, last + 1 - first))
    return located


def marker_place(text: str) -> int:
    """Which of `words(text)` is the marker of the missing citation. Other words may be equal to it in lower case."""
    marker = _MARKER.search(text)
    if marker is None:
        raise ValueError(f"the text has no {TARGET}")
    return len(words(text[: marker.start()]))


def is_term(word: str) -> bool:
    """Whether a normalised word counts as a term: the marker does not, nor a word that is equal to it in lower case."""
    return word != _TARGET


def term_id(word: str) -> int:
    """The 32-bit id of a normalised word. No dictionary is needed: any program that knows CRC-32 finds the same one.

    Two words of the same id count as one. Among 200,000 words that happens to about five pairs.
    """
    return zlib.crc32(word.encode("utf-8", "surrogatepass"))


def count_terms(text: str) -> Counter[int]:
    """How often each term stands in a text, without the marker of the missing citation."""
    found: Counter[int] = Counter()
    for word, count in Counter(_WORD.findall(text.lower())).items():
        if (term := _term_of(word)) is not None:
            found[term] = found.get(term, 0) + count
    return found


# Most words of a text are frequent ones: the caches hold those.
@lru_cache(maxsize=50_000)
def _normal(word: str) -> str:
    """A word in lower case as it counts; empty for one that does not."""
    return "" if word in _LEFT_OUT else _singular(word)


@lru_cache(maxsize=50_000)
def _term_of(word: str) -> int | None:
    normal = _normal(word)
    return None if normal in ("", _TARGET) else term_id(normal)


def _singular(word: str) -> str:
    if len(word) <= 3 or not word.endswith("s") or word.endswith(("us", "ss")):
        return word
    if word.endswith("ies"):
        return f"{word[:-3]}y"
    return word[:-1]
