"""Files that other processes may read, or a later run of a killed one."""

from __future__ import annotations

from pathlib import Path


def written_whole(file: Path, text: str) -> None:
    """Writes a text file so that a killed process leaves the whole file or none."""
    unfinished = file.with_name(f"{file.name}.part")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(file)
