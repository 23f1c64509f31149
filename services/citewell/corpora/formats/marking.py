"""From what a source knows of a citation to passages and contexts with the target in its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from citewell.corpora.formats.documents import Mark, Paragraph
from citewell.scholarly.contexts import OTHER, TARGET, CitationMarker, Passage

_BETWEEN = re.compile(r"[\s,;‐‑‒–-]*(?:and|&)?[\s,;‐‑‒–-]*")
_NUMBERED = re.compile(r"\[\s*\d+(?:\s*[,;–-]\s*\d+)*\s*\]")
_YEAR = r"(?:19|20)\d\d[a-z]?"
_SURNAME = r"[A-Z][\w'’-]+"
_NAMED = re.compile(
    rf"\([^()]*\b{_YEAR}\b[^()]*\)|\b{_SURNAME}(?:\s+et\s+al\.?|\s+(?:and|&)\s+{_SURNAME})?,?\s*\({_YEAR}\)"
)
_END = re.compile(r"[.?!\s]*$")


def passage(paragraph: Paragraph, id_of: Callable[[str], str]) -> Passage | None:
    """The paragraph with the citations whose papers are known; the others become OTHERCIT. None if none is known."""
    text, markers, end = "", list[CitationMarker](), 0
    groups = _brackets(paragraph)
    for number, mark in enumerate(sorted(paragraph.marks, key=lambda mark: mark.start)):
        if mark.start < end:  # overlaps the one before
            continue
        text += paragraph.text[end : mark.start]
        ids = tuple(dict.fromkeys(found for key in mark.keys if (found := id_of(key))))
        if ids:
            markers.append(CitationMarker(len(text), mark.end - mark.start, ids, groups[number]))
            text += paragraph.text[mark.start : mark.end]
        else:  # a word of its own, also where it was printed as a raised number
            before = " " if text[-1:].isalnum() else ""
            after = " " if paragraph.text[mark.end : mark.end + 1].isalnum() else ""
            text += before + OTHER + after
        end = mark.end
    text += paragraph.text[end:]
    return Passage(text, tuple(markers), paragraph.section) if markers else None


def _brackets(paragraph: Paragraph) -> list[int]:
    """A number a mark, the same for marks with nothing but separators between them; 0 for one that is alone."""
    marks = sorted(paragraph.marks, key=lambda mark: mark.start)
    runs: list[list[int]] = []
    for number, mark in enumerate(marks):
        if number and _BETWEEN.fullmatch(paragraph.text, marks[number - 1].end, max(mark.start, marks[number - 1].end)):
            runs[-1].append(number)
        else:
            runs.append([number])
    groups = [0] * len(marks)
    for group, run in enumerate((run for run in runs if len(run) > 1), 1):
        for number in run:
            groups[number] = group
    return groups


def masked(sentence: str, surnames: Sequence[str], year: int) -> str:
    """A sentence that is known to cite a paper, with TARGETCIT where it does so.

    In order: the one place that names the paper's first author or year, the one numbered bracket, the only place that
    looks like a citation. Where none stands out, the target is behind the sentence.
    """
    clean = re.sub(rf"\b(?:{TARGET}|{OTHER})\b", "", sentence)
    named = [found.span() for found in _NAMED.finditer(clean)]
    numbered = [found.span() for found in _NUMBERED.finditer(clean)]
    wanted = [surname for surname in surnames[:1] if surname] + ([str(year)] if year else [])
    for word in wanted:
        telling = [(start, end) for start, end in named if word.casefold() in clean[start:end].casefold()]
        if len(telling) == 1:
            return _with_target(clean, telling[0], [*named, *numbered])
    for places in (numbered, named):
        if len(places) == 1:
            return _with_target(clean, places[0], [*named, *numbered])
    end = _END.search(clean)
    at = end.start() if end else len(clean)
    return _with_target(f"{clean[:at]} {clean[at:]}", (at + 1, at + 1), [*named, *numbered])


def _with_target(text: str, target: tuple[int, int], places: list[tuple[int, int]]) -> str:
    marks = [Mark(start, end, ()) for start, end in {target, *places}]
    pieces, end = [], 0
    for mark in sorted(marks, key=lambda mark: (mark.start, mark.end)):
        if mark.start >= end:
            pieces += [text[end : mark.start], TARGET if (mark.start, mark.end) == target else OTHER]
            end = mark.end
    return " ".join("".join([*pieces, text[end:]]).split())
