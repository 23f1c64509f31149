"""Settings of the index service."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from citewell.runtime.settings import ServiceSettings


class QdrantSettings(BaseModel):
    """A Qdrant server or cluster, 1.17 or later."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    url: str = "http://127.0.0.1:6333"
    """REST address of the server or of the cluster's load balancer; https:// speaks TLS."""
    grpc_port: int = Field(6334, ge=1, le=65535)
    """Port of the server's gRPC interface, on the same host."""
    api_key: SecretStr = SecretStr("")
    """Key that may read and write; empty = none."""
    prefix: str = Field("citewell", pattern="^[a-z0-9][a-z0-9-]{0,31}$")
    """Prefix of the names of all collections, and alias of the served one."""
    shards: int = Field(1, ge=1, le=64)
    """Shards of each new collection: a multiple of the number of nodes."""
    replicas: int = Field(1, ge=1, le=16)
    """Copies of each shard; 2 or more survive the loss of a node."""
    write_consistency: int = Field(1, ge=1, le=16)
    """How many copies must have a write before it is acknowledged."""
    strict: bool = True
    """Turn on Qdrant's strict mode: the server refuses filters without an index and huge requests."""
    exact: bool = False
    """Always look at every vector instead of the graph and the int8 copies."""


class IndexSettings(ServiceSettings):
    """CITEWELL_INDEX__…"""

    model_config = SettingsConfigDict(env_prefix="CITEWELL_INDEX__")

    store: Literal["edge", "qdrant"] = "edge"
    """Where the points are stored: edge = qdrant-edge in this process, qdrant = a Qdrant server."""
    qdrant: QdrantSettings = QdrantSettings()
    """Where the Qdrant server is and how its collections are spread."""
    folder: Path = Path("data/index")
    """Where the embedded store keeps its points."""
    min_free_megabytes: int = Field(256, ge=0)
    """The embedded store refuses to write when less disk space than this is free."""
    flush_seconds: float = Field(30.0, gt=0)
    """How often the embedded store flushes its segments. Acknowledged writes are on disk in any case, in its
    write-ahead log; a longer time makes that log, and the next start after a crash, longer."""
    owner_wait_seconds: float = Field(10.0, ge=0)
    """How long to wait at start until the previous process releases the embedded store."""
    accelerator: Literal["none", "flat", "sq8", "gpu"] = "flat"
    """Form of the papers in memory: flat = exact, 4 bytes a number; sq8 = a quarter of that, and the store's vectors
    decide at the end; gpu = profiles on a GPU; none = the store alone answers. All but none keep papers' words too."""
    words_on_disk: bool = False
    """Keep the papers' words in files of the folder instead of in memory; the operating system caches what is searched.
    The files have no name and vanish with the process."""
    second_phase: str = "packaged"
    """Model that ranks the best 1,000 candidates of a HYBRID search again: packaged = the one in the package, the path
    of a file that `citewell train second-phase` wrote, or none = the order of the first phase."""
    search_threads: int = Field(2, ge=1, le=256)
    """How many searches run side by side in memory. Each may use a second thread for its cosines."""
    feed_seconds: float = Field(0.0, ge=0)
    """How old the copy in memory may be when other processes write to the store too; 0 = check before each search."""
