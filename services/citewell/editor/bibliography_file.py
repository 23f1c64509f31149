"""The .bib file beside a draft."""

from __future__ import annotations

from pathlib import Path

from citewell.manuscripts.bibliography import Bibliography, read_bibtex
from citewell.manuscripts.flow import Source
from citewell.manuscripts.markdown import named_in_front_matter
from citewell.manuscripts.named_bibliographies import named_in_latex

DEFAULT_NAME = "references.bib"


class BibliographyFiles:
    """Reads .bib files, each again only when it has changed: every completion and every hover needs one."""

    def __init__(self) -> None:
        self._read: dict[Path, tuple[tuple[int, int], Bibliography]] = {}

    def read(self, path: Path) -> Bibliography:
        """The entries of a file; empty if there is no file."""
        try:
            found = path.stat()
            version = (found.st_mtime_ns, found.st_size)
            known = self._read.get(path)
            if known is None or known[0] != version:
                text = path.read_text(encoding="utf-8", errors="replace")
                known = version, read_bibtex([Source(path.name, text)])
                self._read[path] = known
        except OSError:
            return Bibliography()
        return known[1]


def path_of_bibliography(draft: Path, text: str) -> Path:
    """The .bib file that a draft names, or the only one in its folder, or where a new one would go."""
    if named := named_in_latex(text) or named_in_front_matter(text):
        name = named[0]
        return draft.parent / (name if name.endswith(".bib") else f"{name}.bib")
    beside = sorted(draft.parent.glob("*.bib"))
    return beside[0] if len(beside) == 1 else draft.parent / DEFAULT_NAME
