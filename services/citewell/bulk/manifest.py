"""What a bulk build wrote: by which encoder and rules, and how much of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from citewell.scholarly.words import LEXICON

FORMAT = 1
PARTS = ("papers", "stubs", "edges", "texts", "sums")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The file manifest.json, written last: a folder without it is unfinished."""

    model_hash: str
    model_name: str
    dimension: int
    papers: int
    citations: int
    texts: int
    rejected: int
    seconds: dict[str, float]
    """Of each stage."""
    lexicon: str = LEXICON
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        (folder / "manifest.json").write_text(json.dumps(asdict(self), indent=1), "utf-8")


def read_manifest(folder: Path) -> Manifest:
    """Raises ValueError for a folder that no finished build of this format and these rules wrote."""
    file = folder / "manifest.json"
    if not file.is_file():
        raise ValueError(f"{folder} holds no manifest.json: no finished bulk build wrote it")
    try:
        manifest = Manifest(**json.loads(file.read_text("utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file} is no manifest of a bulk build: {error}") from None
    if (manifest.format, manifest.lexicon) != (FORMAT, LEXICON):
        raise ValueError(
            f"{file} has format {manifest.format} and words by {manifest.lexicon!r}; "
            f"this citewell reads format {FORMAT} and {LEXICON!r}: build again"
        )
    return manifest
