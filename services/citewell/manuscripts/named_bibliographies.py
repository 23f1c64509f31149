"""The commands by which a LaTeX file names its bibliographies."""

from __future__ import annotations

import re
from collections.abc import Iterator

BIBLIOGRAPHY = re.compile(r"\\bibliography\{([^}]*)\}")
RESOURCE = re.compile(r"\\addbibresource(?:\[[^\]]*\])?\{([^}]*)\}")
_COMMENT = re.compile(r"(?<!\\)%")


def active(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """The matches that are not commented out."""
    for match in pattern.finditer(text):
        line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if not _COMMENT.search(line):
            yield match


def named_in_latex(text: str) -> list[str]:
    """The names of the .bib files, in the order in which they stand."""
    commands = sorted([*active(BIBLIOGRAPHY, text), *active(RESOURCE, text)], key=lambda each: each.start())
    return [name.strip() for each in commands for name in each[1].split(",") if name.strip()]
