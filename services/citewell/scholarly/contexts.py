"""Citation contexts: marked places in text, and how they are cut from passages."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

TARGET = "TARGETCIT"
OTHER = "OTHERCIT"

# Characters kept on either side of the target; what both evaluation sets use.
CONTEXT_RADIUS = 300

_MARKERS = re.compile(rf"\b(?:{TARGET}|{OTHER})\b")
_OTHER_RUN = re.compile(rf"{OTHER}(?:[\s,;]+{OTHER})+")
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
    return _SPACES.sub(" ", unicodedata.normalize("NFC", text)).strip()


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
    brackets: dict[object, list[CitationMarker]] = {}
    for index, marker in enumerate(markers):
        brackets.setdefault(marker.group or ("alone", index), []).append(marker)
    contexts: list[MaskedContext] = []
    for members in brackets.values():
        group_size = len({cited for marker in members for cited in marker.reference_ids})
        for target in members:
            text = window(normalise(_mask_text(passage.text, markers, target)))
            contexts.extend(MaskedContext(text, cited, group_size) for cited in target.reference_ids)
    return contexts


def _mask_text(text: str, markers: list[CitationMarker], target: CitationMarker) -> str:
    pieces, end = [], 0
    for marker in markers:
        pieces += [text[end : marker.offset], " ", TARGET if marker is target else OTHER, " "]
        end = marker.offset + marker.length
    masked = "".join([*pieces, text[end:]])
    return _OTHER_RUN.sub(OTHER, re.sub(r" +([.,;:)\]])", r"\1", masked))
