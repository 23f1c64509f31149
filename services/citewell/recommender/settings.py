"""What the recommender can be told: CITEWELL_RECOMMENDER__<NAME>."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from citewell.runtime.settings import ServiceSettings


class RecommenderSettings(ServiceSettings):
    """The recommender's settings."""

    model_config = SettingsConfigDict(env_prefix="CITEWELL_RECOMMENDER__")

    profiler_address: str = Field("127.0.0.1:7301", min_length=1)
    """The profiler (ProfileQueryService); without it there is no answer."""
    index_address: str = Field("127.0.0.1:7302", min_length=1)
    """The index; without it there is no answer."""
    reranker_address: str = "127.0.0.1:7303"
    """The reranker; empty = none, and answers keep the retrieval order and say so."""
    ingestion_address: str = "127.0.0.1:7304"
    """Asked only for requests with min_watermark; empty = such requests fail."""
    default_rerank_depth: int = Field(50, ge=1, le=1000)
    """Candidates the reranker reads where a request names no depth."""
    rerank_timeout_seconds: float = Field(10.0, gt=0)
    """An answer that takes the reranker longer keeps the retrieval order and says so."""
    evidence_timeout_seconds: float = Field(2.0, gt=0)
    """An evidence search that takes longer is left out, and the answer says so."""
    breaker_failures: int = Field(3, ge=1)
    """After so many failures in a row the reranker (or the evidence search) is left alone for a while."""
    breaker_rest_seconds: float = Field(2.0, gt=0)
    """How long that while is; then one request tries again."""
    prior_decay: float = Field(0.95, gt=0, lt=1)
    """λ of eq. 6, for answers the reranker had no part in."""
    batch_in_flight: int = Field(4, ge=1, le=100)
    """Queries of one RecommendBatch that are worked on at a time."""
