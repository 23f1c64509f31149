"""Ranges of numbered citations, such as "3–7", of which a source often marks only one or both ends."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from citewell.corpora.formats.documents import Mark, Paragraph

_NUMBER = re.compile(r"[\[(]?(\d{1,4})[\])]?")
_DASHES = r"\-‐‑‒–"
_DASH = re.compile(rf"\s*[{_DASHES}]\s*")
_NUMBERS = re.compile(rf"[\[(]?\s*\d{{1,4}}(?:\s*[,;{_DASHES}]\s*\d{{1,4}})+\s*[\])]?")
_RANGE = re.compile(rf"(\d+)(?:\s*[{_DASHES}]\s*(\d+))?")


def with_ranges(paragraph: Paragraph, entries: Sequence[str], numbered: Mapping[int, str]) -> Paragraph:
    """The paragraph where ranges cite all entries in them; `entries` are the bibliography's keys, in its order."""
    marks = [_whole(mark, paragraph.text, numbered) for mark in paragraph.marks]
    place = {key: at for at, key in enumerate(entries)}
    for number, (first, last) in enumerate(pairwise(marks)):
        numbers = [_NUMBER.fullmatch(paragraph.text, mark.start, mark.end) for mark in (first, last)]
        if not all(numbers) or not _DASH.fullmatch(paragraph.text, first.end, last.start):
            continue
        low, high = (int(found[1]) for found in numbers if found)
        start, end = place.get(first.keys[-1], -1), place.get(last.keys[0], -1)
        if start >= 0 and end - start == high - low > 1:  # the list is numbered as the text says
            marks[number] = replace(first, keys=(*first.keys, *entries[start + 1 : end]))
    return replace(paragraph, marks=tuple(marks))


def _whole(mark: Mark, text: str, entries: Mapping[int, str]) -> Mark:
    """The mark with every entry that its text names, if those that it points to are among them."""
    if not _NUMBERS.fullmatch(text, mark.start, mark.end):
        return mark
    named: list[str] = []
    for found in _RANGE.finditer(text, mark.start, mark.end):
        low, high = int(found[1]), int(found[2] or found[1])
        if low not in entries or high not in entries:
            return mark
        named += [entries[number] for number in range(low, high + 1) if number in entries]
    return replace(mark, keys=tuple(dict.fromkeys(named))) if set(mark.keys) <= set(named) else mark
