"""The .bib file beside a draft."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

from citewell.manuscripts.bibliography import Bibliography, read_bibtex
from citewell.manuscripts.flow import Source
from citewell.manuscripts.markdown import named_in_front_matter
from citewell.manuscripts.named_bibliographies import active, named_in_latex

_ROOT = re.compile(r"^%\s*!\s*TEX\s+root\s*=\s*(\S.*?)\s*$", re.IGNORECASE | re.MULTILINE)
"""How TeXShop, TeXworks and VS Code's LaTeX Workshop name a chapter's main file."""
_BEGIN = "\\begin{document}"
_MOST_LEVELS, _MOST_FILES, _MOST_BYTES = 3, 30, 1_000_000
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
    """The .bib file that a draft or its main file names, or the only one in its folder, or where a new one would go."""
    if named := named_in_latex(text) or named_in_front_matter(text):
        return _nearest(draft.parent, named[0] if named[0].endswith(".bib") else f"{named[0]}.bib")
    if main := _main_file(draft, text):
        return path_of_bibliography(*main)
    beside = sorted(draft.parent.glob("*.bib"))
    return beside[0] if len(beside) == 1 else draft.parent / DEFAULT_NAME


def _nearest(folder: Path, name: str) -> Path:
    """The file with that name; a chapter's names are relative to the folder of its main file, which is further up."""
    above = [folder / name, *(each / name for each in islice(folder.parents, _MOST_LEVELS))]
    return next((path for path in above if path.exists()), above[0])


def _main_file(draft: Path, text: str) -> tuple[Path, str] | None:
    """The file that includes a chapter in LaTeX and names a bibliography, and its text."""
    if draft.suffix.lower() != ".tex" or _BEGIN in text:
        return None
    if told := _ROOT.search(text):
        candidates = [draft.parent / told[1]]
    else:
        folders = [draft.parent, *islice(draft.parent.parents, _MOST_LEVELS)]
        candidates = [path for folder in folders for path in islice(sorted(folder.glob("*.tex")), _MOST_FILES)]
    included = re.compile(rf"\\(?:input|include|subfile|import|subimport)\b[^%\n]*\b{re.escape(draft.stem)}\b")
    for path in candidates:
        try:
            found = path.read_text(encoding="utf-8", errors="replace") if path.stat().st_size < _MOST_BYTES else ""
        except OSError:
            continue
        if _BEGIN in found and (told or next(active(included, found), None)) and named_in_latex(found):
            return path, found
    return None
