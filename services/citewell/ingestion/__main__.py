"""python -m citewell.ingestion: the service that publishes, follows and applies events."""

from __future__ import annotations

from citewell.ingestion.server import IngestionServer
from citewell.ingestion.settings import IngestionSettings
from citewell.runtime.server import run

if __name__ == "__main__":
    run("ingestion", IngestionSettings, IngestionServer)
