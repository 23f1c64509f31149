"""What the index service can be told."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from citewell.runtime.settings import ServiceSettings


class IndexSettings(ServiceSettings):
    """CITEWELL_INDEX__…"""

    model_config = SettingsConfigDict(env_prefix="CITEWELL_INDEX__")

    store: Literal["edge"] = "edge"
    """Who keeps the points: edge = qdrant-edge in this process."""
    folder: Path = Path("data/index")
    """Where the embedded store keeps its points."""
    min_free_megabytes: int = Field(256, ge=0)
    """The embedded store refuses to write when less disk space than this is free."""
    owner_wait_seconds: float = Field(10.0, ge=0)
    """How long to wait at start for the process before us to let go of the embedded store."""
    accelerator: Literal["none", "flat", "sq8"] = "flat"
    """Profiles kept in memory for FAISS: flat = exact, 4 bytes a number; sq8 = a quarter of that, nearly exact."""
    search_threads: int = Field(2, ge=1, le=256)
    """How many searches FAISS runs side by side, one thread each."""
    feed_seconds: float = Field(0.0, ge=0)
    """How old the copy in memory may be when others write to the store as well; 0 = ask before every search."""
