"""Settings of the recommender: CITEWELL_RECOMMENDER__<NAME>."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from citewell.runtime.settings import ServiceSettings

PACKAGED_CALIBRATION = Path(__file__).parent / "calibration.json"


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
    """Asked for requests with min_watermark and for feedback; empty = both fail."""
    default_rerank_depth: int = Field(20, ge=1, le=1000)
    """How many candidates the reranker reads when a request names no depth."""
    rerank_timeout_seconds: float = Field(10.0, gt=0)
    """When the reranker takes longer, the answer keeps the retrieval order and says so."""
    evidence_timeout_seconds: float = Field(2.0, gt=0)
    """When the search for evidence (or for contents, parts of scores, references) takes longer, the answer goes out
    without it and says so."""
    breaker_failures: int = Field(3, ge=1)
    """After so many failures in a row an optional service is not called for a while."""
    breaker_rest_seconds: float = Field(2.0, gt=0)
    """How long it is not called. Then one request tries again."""
    prior_decay: float = Field(0.95, gt=0, lt=1)
    """λ of eq. 6, for answers that are not reranked."""
    second_phase_weight: float = Field(0.75, ge=0, allow_inf_nan=False)
    """w: log-odds of the reranker's score plus w times the second phase's score rank what the reranker read; 0 = its
    score alone."""
    feedback: Literal["off", "choices", "text"] = "off"
    """What RecordFeedback keeps of what writers choose. off: nothing; choices: ids of papers, never text; text: also
    the text around the place, of writers who agree in their request."""
    batch_in_flight: int = Field(4, ge=1, le=100)
    """How many queries of one RecommendBatch are answered at the same time."""
    longest_queue_seconds: float = Field(1.0, gt=0)
    """Recommend: a call that would take longer than this and than `longest_queue_times` allows is refused at once."""
    longest_queue_times: float = Field(4.0, ge=1)
    """Recommend: a call may take so many times as long as a call takes while at most two are in progress."""
    confidence_file: str = ""
    """Calibration of confidences (JSON, deploy/docs/confidence.md); empty = the one in the package."""
