"""Finds the files of a draft by the names that the draft uses for them."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from citewell.manuscripts.flow import Source


class SentFiles:
    """The text files that came with a draft."""

    def __init__(self, files: Mapping[str, Source], main: str) -> None:
        self._files = files
        self._folder = posixpath.dirname(main)

    def find(self, name: str, suffix: str) -> Source | None:
        """The file that the draft calls so, with or without the suffix; None if it was not sent.

        Paths are relative to the main file. A browser sends files without their folders, so the only file with that
        base name will do, too.
        """
        names = (name, name + suffix)
        for folder in (self._folder, ""):
            for each in names:
                if found := self._files.get(posixpath.normpath(posixpath.join(folder, each))):
                    return found
        wanted = {posixpath.basename(each) for each in names}
        alike = [source for path, source in self._files.items() if posixpath.basename(path) in wanted]
        return alike[0] if len(alike) == 1 else None
