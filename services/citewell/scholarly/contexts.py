"""Citation contexts: marked places in text, and how they are cut from passages."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

TARGET = "TARGETCIT"
OTHER = "OTHERCIT"

# Characters kept on either side of the target, as in both evaluation sets.
CONTEXT_RADIUS = 300

_MARKERS = re.compile(rf"\b(?:{TARGET}|{OTHER})\b")
_SEPARATORS = re.compile(r"[\s,;]+")
_BLANKS_BEFORE_PUNCTUATION = re.compile(r" +([.,;:)\]])")
_SPACES = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class CitationMarker:
    """One place in a passage that cites: offset and length in code points."""

    offset: int
    length: int
    reference_ids: tuple[str, ...]
    group: int = 0


@dataclass(frozen=True, slots=True)
class Passage:
    """Whole sentences around citations, as printed."""

    text: str
    markers: tuple[CitationMarker, ...]
    section: str = ""


@dataclass(frozen=True, slots=True)
class MaskedContext:
    """Text with exactly one TARGETCIT that stands for cited_id."""

    text: str
    cited_id: str
    group_size: int = 0


def normalise(text: str) -> str:
    """The text in NFC with every run of white space as one blank: what is hashed, encoded and compared."""
    return _collapse(text).strip()


def count_targets(text: str) -> int:
    """How many places are marked as the missing citation."""
    return sum(match.group() == TARGET for match in _MARKERS.finditer(text))


def window(text: str, radius: int = CONTEXT_RADIUS) -> str:
    """The target with at most `radius` characters on either side, cut between words."""
    at = text.find(TARGET)
    if at < 0:
        raise ValueError(f"the text has no {TARGET}")
    start, end = max(0, at - radius), min(len(text), at + len(TARGET) + radius)
    if start > 0 and not text[start - 1].isspace():
        blank = text.find(" ", start, at)
        start = blank + 1 if blank >= 0 else start
    if end < len(text) and not text[end].isspace():
        blank = text.rfind(" ", at + len(TARGET), end)
        end = blank if blank >= 0 else end
    return text[start:end].strip()


def mask(passage: Passage) -> list[MaskedContext]:
    """One masked context for every marker and every paper it cites, in the passage's order.

    Markers of the same group (or one marker with several ids) are one bracket: each paper is the target in turn.
    """
    markers = sorted(passage.markers, key=lambda marker: marker.offset)
    brackets: dict[object, list[int]] = {}
    for index, marker in enumerate(markers):
        brackets.setdefault(marker.group or ("alone", index), []).append(index)
    windows = _windows(passage.text, markers, CONTEXT_RADIUS)
    contexts: list[MaskedContext] = []
    for members in brackets.values():
        group_size = len({cited for index in members for cited in markers[index].reference_ids})
        for index in members:
            contexts.extend(MaskedContext(windows[index], cited, group_size) for cited in markers[index].reference_ids)
    return contexts


def _windows(text: str, markers: Sequence[CitationMarker], radius: int) -> list[str]:
    """For every marker the window around it, with TARGETCIT in its place and OTHERCIT in the others'.

    A run of other citations is one OTHERCIT. The whole texts of two targets differ only near the targets. So the
    passage is masked once, without a target, and each window is cut from there: linear in markers, not quadratic.
    """
    masked, places = _mask_all(text, markers)
    written = masked.find(TARGET)  # a passage may hold the word itself; the window is around the first one
    windows = []
    for place in places:
        at = written if 0 <= written < place.run else place.run + len(place.before)
        start, end = max(0, at - radius - 1), at + len(TARGET) + radius + 1  # one more shows whether a word is cut
        begin = min(start, place.run)
        rest = place.run + (len(OTHER) if place.is_last else 0)
        near = [
            masked[begin : min(place.run, end)],
            place.before,
            TARGET,
            place.after,
            masked[rest : rest + max(0, end - place.run)],
        ]
        windows.append(window("".join(near)[start - begin : end - begin], radius))
    return windows


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a marker is in a text in which each run of citations is one OTHERCIT."""

    run: int
    """Offset of its run's OTHERCIT."""
    before: str
    """The run up to the marker, when the marker is the target."""
    after: str
    """What separates the marker from the rest of its run."""
    is_last: bool
    """Whether its run ends with it."""


def _mask_all(text: str, markers: Sequence[CitationMarker]) -> tuple[str, list[_Place]]:
    """The normalised text with OTHERCIT for every run of citations, and every marker's place in it."""
    words, is_marker = _split(text, markers)
    places: list[_Place] = []
    pieces = [_collapse(words[0]).lstrip()]
    size, first = len(pieces[0]), 0
    while first < len(is_marker):
        last = first
        while last + 1 < len(is_marker) and _SEPARATORS.fullmatch(words[last + 1]):
            last += 1
        for number in range(first, last + 1):
            if is_marker[number]:
                before = OTHER + _collapse(words[number]) if number > first else ""
                after = _collapse(words[number + 1]) if number < last else ""
                places.append(_Place(size, before, after, number == last))
        # Together with what follows: NFC may join a letter of the text with the accent behind it.
        pieces.append(_collapse(OTHER + words[last + 1]))
        size, first = size + len(pieces[-1]), last + 1
    return "".join(pieces).rstrip(), places


def _split(text: str, markers: Sequence[CitationMarker]) -> tuple[list[str], list[bool]]:
    """The texts between citations, one more than there are citations, and for each citation whether it is a marker.

    Where a passage holds the word OTHERCIT itself, that is a citation, but no marker.
    """
    words, is_marker, end = list[str](), list[bool](), 0
    for number in range(len(markers) + 1):
        is_end = number == len(markers)
        between = text[end:] if is_end else text[end : markers[number].offset]
        spaced = f"{' ' if number else ''}{between}{'' if is_end else ' '}"
        some = _BLANKS_BEFORE_PUNCTUATION.sub(r"\1", spaced).split(OTHER)
        words += some
        is_marker += [False] * (len(some) - 1)
        if not is_end:
            is_marker.append(True)
            end = markers[number].offset + markers[number].length
    return words, is_marker


def _collapse(text: str) -> str:
    return _SPACES.sub(" ", unicodedata.normalize("NFC", text))
