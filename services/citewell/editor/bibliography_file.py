"""The .bib file beside a draft."""

from __future__ import annotations

import re
from pathlib import Path

from citewell.manuscripts.bibliography import Bibliography, read_bibtex
from citewell.manuscripts.flow import Source

_NAMED = re.compile(
    r"\\(?:bibliography|addbibresource)(?:\[[^\]]*\])?\{([^}]*)\}|^bibliography:\s*[\"']?([^\s\"'\[\]]+)", re.MULTILINE
)
DEFAULT_NAME = "references.bib"


class BibliographyFile:
    """The .bib file that a draft names, or the only one in its folder; read again when it changes."""

    def __init__(self, draft: Path, text: str) -> None:
        self.path = _path(draft, text)

    def read(self) -> Bibliography:
        """The entries of the file; empty if there is no file."""
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return Bibliography()
        return read_bibtex([Source(self.path.name, text)])


def _path(draft: Path, text: str) -> Path:
    if match := _NAMED.search(text):
        name = (match[1] or match[2]).split(",")[0].strip()
        return draft.parent / (name if name.endswith(".bib") else f"{name}.bib")
    beside = sorted(draft.parent.glob("*.bib"))
    return beside[0] if len(beside) == 1 else draft.parent / DEFAULT_NAME
