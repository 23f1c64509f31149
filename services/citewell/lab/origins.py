"""What a training learns from, noted in its folder: a run that is continued must go on with the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from citewell.lab.dataset import Dataset
from citewell.lab.protocol import Mode
from citewell.lab.whole_files import written_whole

Origin = Mapping[str, str | int]
FILE = "origin.json"


def origin_of(data: Dataset, mode: Mode) -> dict[str, str | int]:
    """The data set and the protocol. A set that has grown is another one."""
    return {"data": data.name, "papers": len(data.papers), "contexts": len(data.contexts), "mode": mode.value}


def same_origin(folder: Path, origin: Origin) -> None:
    """Notes the origin in a folder without one. ValueError if the folder's is another."""
    file = folder / FILE
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        written_whole(file, json.dumps(dict(origin), indent=1) + "\n")
        return
    noted = json.loads(file.read_text("utf-8"))
    if changed := [
        f"{name} {noted.get(name)!r}, not {value!r}" for name, value in origin.items() if noted.get(name) != value
    ]:
        raise ValueError(f"{folder} was begun with {'; '.join(changed)}: name another folder or delete it")


def origin_digest(origin: Origin) -> str:
    """A short name of an origin, for files that belong to it."""
    return sha256(json.dumps(dict(origin), sort_keys=True).encode()).hexdigest()[:12]
