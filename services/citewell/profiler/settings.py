"""What the profiler can be told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, PlainSerializer
from pydantic_settings import SettingsConfigDict

from citewell.profiler.encoder_files import DEFAULT_ENCODER
from citewell.profiler.ledger.database import without_password
from citewell.profiler.ledger.lifecycle import MAX_VIEWS
from citewell.profiler.ledger.views import PointForm
from citewell.profiler.lexical import (
    CHOSEN_BM25,
    CHOSEN_FIELDS,
    CHOSEN_TERMS,
    CHOSEN_WEIGHT,
    MAX_TERMS,
    BagRules,
    Bm25,
    FieldWeights,
    TermWeights,
)
from citewell.profiler.profiles import CHOSEN_PROFILE, CHOSEN_QUERY, ProfileWeights
from citewell.profiler.query_words import CHOSEN_ALONE, WordWeights
from citewell.runtime.settings import ServiceSettings

LedgerUrl = Annotated[str, PlainSerializer(without_password, when_used="json")]
"""Printed without its password."""


class ProfilerSettings(ServiceSettings):
    """Environment variables CITEWELL_PROFILER__…"""

    model_config = SettingsConfigDict(env_prefix="CITEWELL_PROFILER__")

    ledger_url: LedgerUrl = "sqlite:///data/ledger.sqlite"
    """Where the ledger is: sqlite:///path (four slashes for an absolute one) or postgresql://user:password@host/name."""
    index_address: str = "127.0.0.1:7302"
    """host:port of the index."""
    project: bool = True
    """Write to the index and keep its views; off in processes that only embed queries. Those wait for one that is on
    to open the ledger, and serve with the weights of the served view, whatever alpha and beta say here."""
    max_views: int = Field(MAX_VIEWS, ge=2)
    """How many views the ledger may keep: each costs every publication the work of one, and disk in the index."""
    progress_seconds: float = Field(0.2, gt=0)
    """How often to look for what other profiler processes applied or projected."""

    index_check_seconds: float = Field(5.0, gt=0)
    """How often to compare what the index holds with the ledger; what the index lost is filled in again."""

    encoder: str = DEFAULT_ENCODER
    """ENC1: a folder, a Hugging Face id in the local cache, or the packaged default."""
    encoder_runtime: str = Field("openvino", pattern="^(openvino|onnxruntime)$")
    """Which runtime computes it."""
    encoder_precision: str = Field("auto", pattern="^(auto|fp32|bf16|int8)$")
    """auto is bf16 where this CPU has it, else fp32; the two are interchangeable. int8 needs a view of its own."""
    encoder_max_tokens: int = Field(0, ge=0)
    """Longest text in tokens; 0 = the model's own limit."""
    encoder_strip_markers: bool = False
    """Leave TARGETCIT and OTHERCIT out of what is encoded."""
    encoder_threads: int = Field(0, ge=0)
    """Cores the encoder computes on; 0 = all. With OpenVINO each encodes a batch of its own."""
    encoder_cache: Path | None = None
    """Where built model graphs are kept; empty = the user's cache folder."""
    encoder_allow_download: bool = False
    """Fetch the encoder from Hugging Face when it is not here."""

    alpha: float = Field(CHOSEN_PROFILE.alpha, ge=0)
    """α of eq. 3: what citing contexts add to a profile. A change starts a rebuild that needs no encoding."""
    beta: float = Field(CHOSEN_PROFILE.beta, ge=0)
    """β of eq. 3: what citing papers' own texts add to a profile."""
    gamma: float = Field(CHOSEN_QUERY.gamma, ge=0)
    """γ of eq. 4: how much the citation context counts in a query."""
    delta: float = Field(CHOSEN_QUERY.delta, ge=0)
    """δ of eq. 4: how much the draft's title and abstract count in a query."""

    words_title: float = Field(CHOSEN_FIELDS.title, ge=0)
    """What a word of the title counts in a paper's bag of words. A change of one of these four starts a rebuild that
    needs no encoding."""
    words_abstract: float = Field(CHOSEN_FIELDS.abstract, ge=0)
    """What a word of the abstract counts."""
    words_contexts: float = Field(CHOSEN_FIELDS.contexts, ge=0)
    """What a word of a citing context counts."""
    words_kept: int = Field(MAX_TERMS, ge=1, le=10_000)
    """A point in the index holds so many terms at most: those that count most."""

    query_words_reach: float = Field(CHOSEN_TERMS.reach, gt=0)
    """A word d words from the marker counts floor + (1 - floor)·exp(-d/reach)."""
    query_words_floor: float = Field(CHOSEN_TERMS.floor, ge=0, le=1)
    """What the farthest words of the context count."""
    query_words_title: float = Field(CHOSEN_TERMS.title, ge=0)
    """What a word of the draft's title counts beside a context."""
    query_words_abstract: float = Field(CHOSEN_TERMS.abstract, ge=0)
    """What a word of the draft's abstract counts beside a context."""
    query_words_title_alone: float = Field(CHOSEN_ALONE.title, ge=0)
    """What a word of the draft's title counts in a query without a context."""
    query_words_abstract_alone: float = Field(CHOSEN_ALONE.abstract, ge=0)
    """What a word of the draft's abstract counts in a query without a context."""
    lexical_weight: float = Field(CHOSEN_WEIGHT, ge=0)
    """w of HYBRID = cosine + w · lexical score."""
    bm25_k1: float = Field(CHOSEN_BM25.k1, ge=0)
    """k1 of BM25: how soon a word said again adds less."""
    bm25_b: float = Field(CHOSEN_BM25.b, ge=0, le=1)
    """b of BM25: how much long bags of words are held back."""

    @property
    def profile_weights(self) -> ProfileWeights:
        return ProfileWeights(self.alpha, self.beta)

    @property
    def point_form(self) -> PointForm:
        fields = FieldWeights(self.words_title, self.words_abstract, self.words_contexts)
        return PointForm(BagRules(fields, self.words_kept))

    @property
    def word_weights(self) -> WordWeights:
        reach, floor = self.query_words_reach, self.query_words_floor
        return WordWeights(
            TermWeights(reach, floor, self.query_words_title, self.query_words_abstract),
            TermWeights(reach, floor, self.query_words_title_alone, self.query_words_abstract_alone),
            Bm25(self.bm25_k1, self.bm25_b),
            self.lexical_weight,
        )
