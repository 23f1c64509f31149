"""Snapshots of a view on a Qdrant server.

    python -m citewell.index.snapshots take [VIEW] > taken.json      the serving view when none is named
    python -m citewell.index.snapshots restore < taken.json          locations: file:// or http(s):// on the server

Settings are the index service's. A restored view is older than the ledger: `citewell doctor profiles --repair` is next.
"""

from __future__ import annotations

import asyncio
import json
import sys

from citewell.index.settings import IndexSettings
from citewell.index.stores import qdrant_store
from citewell.runtime.errors import CitewellError
from citewell.runtime.settings import load_settings


async def take(settings: IndexSettings, view: str) -> dict[str, str]:
    """Where each collection's snapshot can be fetched from: collection → address."""
    store = qdrant_store(settings)
    await store.open()
    try:
        taken = await store.snapshot((await store.registry()).resolve(view))
    finally:
        await store.close()
    return {name: f"{settings.qdrant.url}/collections/{name}/snapshots/{file}" for name, file in taken.items()}


async def restore(settings: IndexSettings, locations: dict[str, str]) -> None:
    store = qdrant_store(settings)
    await store.open()
    try:
        await store.restore(locations)
    finally:
        await store.close()


def main(arguments: list[str]) -> None:
    settings = load_settings(IndexSettings)
    try:
        match arguments:
            case ["take", *view] if len(view) <= 1:
                print(json.dumps(asyncio.run(take(settings, "".join(view))), indent=2))
            case ["restore"]:
                asyncio.run(restore(settings, json.load(sys.stdin)))
            case _:
                raise SystemExit(__doc__)
    except CitewellError as error:
        raise SystemExit(f"citewell index: {error}") from None


if __name__ == "__main__":
    main(sys.argv[1:])
