"""Evidence spans: the part of a citation context that speaks of the cited paper (ILCiteR §5.2).

Markers that stand side by side form one reference group. A sentence is split at its groups, and each piece of text
belongs to the group that follows it. The whole sentence is a span too, where the target's group is the only one of the
sentence or ends it. Two rules are ours: where nothing stands before a group but names of authors ("Knuth et al.
TARGETCIT proved …"), the piece behind it is taken; and "and", "or" or "but" does not begin a piece.

ILCiteR tries one rule before these: the entity mention next to a group, found in a dependency parse ("BERT" out of
"They used BERT TARGETCIT, a language model OTHERCIT"). It is left out, since it needs a trained parser, and none is
among this package's dependencies. A piece then holds some words more than the mention.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

from citewell.scholarly.contexts import OTHER, TARGET
from citewell.scholarly.words import located_words

EXTRACTOR = "pieces/1"
"""Names the rules of this module. Spans cut by other rules need a rebuild, so a change needs a new name."""

# A list of references in one bracket, and a reference with authors and year, are one marker each. What may repeat is
# bounded, so that no text takes longer than in proportion to its length.
_NAME = r"[A-Z][\w'’-]{1,40}"
_YEAR = r"(?:19|20)\d\d[a-z]?"
_WORK = rf"{_NAME}(?:,? (?:et al\.?|(?:and|&) {_NAME}))?,? \(?{_YEAR}"
_MARKER = re.compile(
    rf"\b(?:{TARGET}|{OTHER})\b"
    r"|\[\d{1,4}(?:\s?[,;–—-]\s?\d{1,4}){0,50}\]"
    rf"|\((?:(?:see|cf\.?|e\.g\.,?|i\.e\.,?) )?{_WORK}(?:[;,] {_WORK}){{0,50}}\)"
    rf"|\b{_NAME} et al\.?,? \(?{_YEAR}\)?"
)
# What may stand between two markers of one group, also where both are in brackets of their own.
_JOINT = re.compile(r"[\s,;/&()\[\]–—-]*(?:(?:and|or)\b[\s,;()\[\]]*)?")
_LONGEST_JOINT = 12
_OPENING = re.compile(r"[(\[]\s?(?:(?:see|cf\.?|e\.g\.,?|i\.e\.,?)\s)?$")
_CLOSING = re.compile(r"\s?[)\]]+")
_LONGEST_OPENING = 8

_STOP = re.compile(r"[.!?]{1,4}[\"'”’)\]]{0,3}\s+")
_BEGINNING = re.compile(r"[\"'“‘(\[]*[A-Z0-9]")
_LAST_WORD = re.compile(r"[\w.]{1,20}$")
_NEXT_WORD = re.compile(r"\w+")
# No sentence ends at the full stop of these.
_ABBREVIATED = """
    al fig figs eq eqs eqn eqns sec secs sect tab ref refs no nos vol pp p ch chap app appx alg thm lem prop cor def ex
    e.g i.e eg ie cf vs viz resp approx ca w.r.t a.k.a dr prof mr mrs ms st jr sr dept univ proc conf
"""
_ABBREVIATIONS = frozenset(_ABBREVIATED.split())
# A word that begins a sentence even behind a single letter ("of type A. We …"), which is an initial otherwise.
_STARTS = """
    A An As Besides But Finally First For From Here However If In It Let Moreover Next Note On Our Since So The Then
    There These They This Thus To We When While With
"""
_SENTENCE_STARTS = frozenset(_STARTS.split())

_LEADING = frozenset(",;:.!?()[]–—-")
_TRAILING = _LEADING - {")", "]"}
_CONJUNCTION = re.compile(r"(?:and|or|but)\s", re.IGNORECASE)
_ENOUGH = 60
_AUTHORS = re.compile(rf"(?:{_NAME},? ){{0,2}}{_NAME},? (?:et al\.?|(?:and|&) {_NAME})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text, in code points."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length

    def of(self, text: str) -> str:
        """What the span says."""
        return text[self.offset : self.end]


def spans(context: str) -> tuple[Span, ...]:
    """The spans of a masked context that speak of its target, the best single one first.

    It is the whole sentence where the target's group is its only one, else the piece of the group. A context whose
    sentence says nothing, or that has no target, is one span as a whole.
    """
    whole = _trimmed(context, 0, len(context))
    at = _target(context)
    if at < 0:
        return (whole,)
    sentence = _sentence_around(context, at)
    groups = _groups(context, sentence)
    number = next(number for number, group in enumerate(groups) if group.offset <= at < group.end)
    group = groups[number]
    before = groups[number - 1].end if number else sentence.offset
    behind = groups[number + 1].offset if number + 1 < len(groups) else sentence.end
    piece = _trimmed(context, before, group.offset)
    if not _says_something(context, piece) or _AUTHORS.fullmatch(piece.of(context)):
        piece = _trimmed(context, group.end, behind)
    at_end = not _says_something(context, _trimmed(context, group.end, sentence.end))
    sentence = _trimmed(context, sentence.offset, group.offset if at_end else sentence.end)
    found = [sentence, piece] if len(groups) == 1 else [piece]
    if at_end:
        found.append(sentence)
    return tuple(dict.fromkeys(span for span in found if _says_something(context, span))) or (whole,)


def sentences(text: str) -> list[Span]:
    """The sentences of a text, one behind the other, with the white space between them."""
    starts = [0]
    for stop in _STOP.finditer(text):
        if _ends_sentence(text, stop):
            starts.append(stop.end())
    return [Span(start, end - start) for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def _ends_sentence(text: str, stop: re.Match[str]) -> bool:
    if not _BEGINNING.match(text, stop.end()):
        return False
    if not stop.group().startswith("."):
        return True
    last = _LAST_WORD.search(text, max(0, stop.start() - 20), stop.start())
    word = last.group().lower() if last else ""
    if word in _ABBREVIATIONS:
        return False
    if re.fullmatch(r"(?:[a-z]\.)*[a-z]", word):  # an initial, or "U.S"
        following = _NEXT_WORD.search(text, stop.end(), stop.end() + 30)
        return following is not None and following.group() in _SENTENCE_STARTS
    return True


def _target(context: str) -> int:
    for marker in re.finditer(rf"\b{TARGET}\b", context):
        return marker.start()
    return -1


def _sentence_around(context: str, at: int) -> Span:
    every = sentences(context)
    return every[bisect_right([sentence.offset for sentence in every], at) - 1]


def _groups(context: str, sentence: Span) -> list[Span]:
    """The reference groups of a sentence with the brackets around them."""
    joined: list[tuple[int, int]] = []
    for marker in _MARKER.finditer(context, sentence.offset, sentence.end):
        start, end = marker.span()
        if joined:
            between = context[joined[-1][1] : start]
            if len(between) <= _LONGEST_JOINT and _JOINT.fullmatch(between):
                joined[-1] = (joined[-1][0], end)
                continue
        joined.append((start, end))
    groups = []
    for start, end in joined:
        opening = _OPENING.search(context, max(sentence.offset, start - _LONGEST_OPENING), start)
        closing = _CLOSING.match(context, end, sentence.end) if opening else None
        start, end = opening.start() if opening else start, closing.end() if closing else end
        groups.append(Span(start, end - start))
    return groups


def _trimmed(text: str, start: int, end: int) -> Span:
    """The part without white space, punctuation and conjunctions at its edges."""
    start = _skip_leading(text, start, end)
    if conjunction := _CONJUNCTION.match(text, start, end):
        start = _skip_leading(text, conjunction.end(), end)
    while end > start and (text[end - 1].isspace() or text[end - 1] in _TRAILING):
        end -= 1
    return Span(start, end - start)


def _skip_leading(text: str, start: int, end: int) -> int:
    while start < end and (text[start].isspace() or text[start] in _LEADING):
        start += 1
    return start


def _says_something(text: str, span: Span) -> bool:
    said = span.of(text)
    parts = (said[:_ENOUGH], said)  # most spans show a word at once
    return any(not word.is_target for part in parts for word in located_words(part))
