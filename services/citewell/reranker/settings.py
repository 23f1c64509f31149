"""The reranker's settings, from CITEWELL_RERANKER__<NAME>."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from citewell.inference.sessions import Runtime
from citewell.runtime.settings import ServiceSettings

PACKAGED_MODEL = Path(__file__).parent / "model"
SMALL_MODEL = Path(__file__).parent / "model_small"


def model_folder(named: Path) -> Path:
    """The folder of a model that is named `small`, or by its path."""
    return SMALL_MODEL if str(named) == "small" else named


class Backend(StrEnum):
    """Where DAVINCI is computed."""

    IN_PROCESS = "in_process"
    TRITON = "triton"
    NONE = "none"
    """No model: candidates keep their order, and every answer says so."""


class RerankerSettings(ServiceSettings):
    """The reranker's settings."""

    model_config = SettingsConfigDict(env_prefix="CITEWELL_RERANKER__")

    backend: Backend = Backend.IN_PROCESS
    """in_process (this CPU), triton, or none."""
    model: Path = PACKAGED_MODEL
    """`small` (the packaged model of three layers: half the time), or a folder that `citewell export davinci` wrote.
    Triton needs it too, for the tokeniser and the token budgets."""
    runtime: Runtime = Runtime.OPENVINO
    """In process: openvino or onnxruntime."""
    precision: str = Field("auto", pattern="^(auto|fp32|bf16)$")
    """In process: auto takes bf16 where OpenVINO has it on this CPU."""
    threads: int = Field(0, ge=0, le=256)
    """In process: cores to compute on; 0 = all."""
    triton_address: str = "127.0.0.1:8001"
    """Triton's gRPC endpoint."""
    triton_model: str = "davinci"
    """The model's name there."""
    triton_version: str = ""
    """Its version; empty = what Triton's version policy serves."""
    triton_channels: int = Field(2, ge=1, le=16)
    """Connections to Triton; one carries about 100 MB/s."""
    triton_timeout_seconds: float = Field(5.0, gt=0)
    """Deadline of a batch on Triton."""
    default_depth: int = Field(20, ge=1, le=1000)
    """How many candidates are scored when a request names no depth."""
    batch_tokens: int = Field(2048, ge=64)
    """Padded tokens of a batch. 2,048 keeps two cores busy; a GPU wants 32,768 or more."""
    batches_in_flight: int = Field(1, ge=1, le=64)
    """Batches computed at a time: 1 in process; with Triton its instances + 1, so that none idles."""
    waiting_pairs: int = Field(200, ge=0)
    """Pairs that may wait for a batch; what would exceed it is refused with RESOURCE_EXHAUSTED. Room for ten requests
    of the default depth: what is accepted never waits for more."""
    first_pass_share: float = Field(1.0, gt=0, le=1)
    """Two passes where less than 1: all candidates with texts cut to this share of their budgets, then the best
    `second_pass` with all of them. 1 = one pass. It pays at depths of 100 and more."""
    second_pass: int = Field(20, ge=1, le=1000)
    """Candidates that reach the second pass."""
    kept_mebibytes: int = Field(512, ge=0)
    """In process: size of the cache of first-layer states, for models whose first layers read the sides of a pair
    apart. It changes no score."""
    cached_candidates: int = Field(100_000, ge=0)
    """Size of the token cache in candidates, about 300 bytes each."""

    @field_validator("model")
    @classmethod
    def _named(cls, value: Path) -> Path:
        return model_folder(value)
