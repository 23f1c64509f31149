"""The profiler's settings."""

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
from citewell.profiler.profiles import CHOSEN_PROFILE, CHOSEN_QUERY, MAX_WEIGHT, ProfileWeights
from citewell.profiler.query_words import CHOSEN_ALONE, WordWeights
from citewell.profiler.term_weights import PACKAGED, BadTermWeights, LearnedWeights, find_term_weights
from citewell.runtime.settings import ServiceSettings, UnknownSetting

LedgerUrl = Annotated[str, PlainSerializer(without_password, when_used="json")]
"""A database URL that is printed without its password."""


class ProfilerSettings(ServiceSettings):
    """Environment variables CITEWELL_PROFILER__…"""

    model_config = SettingsConfigDict(env_prefix="CITEWELL_PROFILER__")

    ledger_url: LedgerUrl = "sqlite:///data/ledger.sqlite"
    """URL of the ledger: sqlite:///path (sqlite:////path if absolute) or postgresql://user:password@host/name."""
    migrate: bool = True
    """Migrate the ledger's schema at start. Turn it off where the profiler's role must not change the schema and
    `citewell migrate` does it; the profiler then refuses to start on another schema."""
    index_address: str = Field("127.0.0.1:7302", min_length=1)
    """host:port of the index."""
    project: bool = True
    """Write to the index and manage its views. Turn it off in processes that only answer queries: such a process waits
    until one with project=true has opened the ledger, and uses the weights of the served view instead of alpha and
    beta."""
    max_views: int = Field(MAX_VIEWS, ge=2)
    """Largest number of views. Every view adds work to each publication, and disk space in the index."""
    progress_seconds: float = Field(0.2, gt=0)
    """Seconds between two polls of the ledger for changes made by other profiler processes."""

    index_check_seconds: float = Field(5.0, gt=0)
    """Seconds between two comparisons of the index with the ledger. What the index lost is written to it again."""

    encoder: str = DEFAULT_ENCODER
    """The text encoder (ENC1): a folder, a Hugging Face id in the local cache, or the packaged default."""
    encoder_runtime: str = Field("openvino", pattern="^(openvino|onnxruntime)$")
    """The inference runtime of the encoder: openvino or onnxruntime."""
    encoder_precision: str = Field("auto", pattern="^(auto|fp32|bf16|int8)$")
    """Arithmetic precision of the encoder. auto is bf16 if the CPU supports it, else fp32. Processes with bf16 and with
    fp32 can share a view; int8 needs a view of its own."""
    encoder_max_tokens: int = Field(0, ge=0)
    """Longer texts are truncated to this number of tokens; 0 = the model's own limit."""
    encoder_strip_markers: bool = False
    """Remove the markers TARGETCIT and OTHERCIT from texts before they are encoded."""
    encoder_threads: int = Field(0, ge=0)
    """Number of cores that the encoder uses; 0 = all. With OpenVINO each core encodes a batch of its own."""
    encoder_cache: Path | None = None
    """Folder for compiled models; empty = the user's cache folder."""
    encoder_allow_download: bool = False
    """Download the encoder from Hugging Face if it is not in the local cache."""

    alpha: float = Field(CHOSEN_PROFILE.alpha, ge=0, le=MAX_WEIGHT)
    """α of eq. 3: weight of the citing contexts in a profile. A change starts a rebuild that needs no encoding."""
    beta: float = Field(CHOSEN_PROFILE.beta, ge=0, le=MAX_WEIGHT)
    """β of eq. 3: weight of the citing papers' own texts in a profile. A change starts a rebuild that needs no
    encoding."""
    gamma: float = Field(CHOSEN_QUERY.gamma, ge=0, le=MAX_WEIGHT)
    """γ of eq. 4: weight of the citation context in a query."""
    delta: float = Field(CHOSEN_QUERY.delta, ge=0, le=MAX_WEIGHT)
    """δ of eq. 4: weight of the draft's title and abstract in a query."""

    window_encoder: str = "packaged"
    """The encoder of the words around the marker, whose vector the second phase of a HYBRID search compares with
    profiles (`citewell train window-encoder`): packaged, none, or a folder. It belongs to the encoder that it was
    trained beside; with another one the packaged is not used, and a folder is refused."""
    query_map: str = ""
    """File with the learned query map, which HYBRID searches apply to the query's vectors (`citewell train query-map`);
    empty = the one in the package, if there is one for the encoder; none = no map."""

    term_weights: str = PACKAGED
    """Learned weights of the words near the marker in a query: packaged, none, or a file that `citewell train
    term-weights` wrote. Only queries change, so no rebuild is needed."""

    words_title: float = Field(CHOSEN_FIELDS.title, ge=0)
    """Weight of a title word in a paper's bag of words. A change of words_title, words_abstract, words_contexts or
    words_kept starts a rebuild that needs no encoding."""
    words_abstract: float = Field(CHOSEN_FIELDS.abstract, ge=0)
    """Weight of an abstract word in a paper's bag of words."""
    words_contexts: float = Field(CHOSEN_FIELDS.contexts, ge=0)
    """Weight of a word of a citing context in a paper's bag of words."""
    words_kept: int = Field(MAX_TERMS, ge=1, le=10_000)
    """Largest number of terms in a paper's bag of words in the index. The terms with the largest counts are kept."""

    query_words_reach: float = Field(CHOSEN_TERMS.reach, gt=0)
    """How fast the weight of a context word falls with its distance d from the marker, in words. The weight is
    floor + (1 - floor)·exp(-d/reach)."""
    query_words_floor: float = Field(CHOSEN_TERMS.floor, ge=0, le=1)
    """Lowest weight of a context word, reached far from the marker; see query_words_reach."""
    query_words_title: float = Field(CHOSEN_TERMS.title, ge=0)
    """Weight of a word of the draft's title in a query that has a context."""
    query_words_abstract: float = Field(CHOSEN_TERMS.abstract, ge=0)
    """Weight of a word of the draft's abstract in a query that has a context."""
    query_words_title_alone: float = Field(CHOSEN_ALONE.title, ge=0)
    """Weight of a word of the draft's title in a query without a context."""
    query_words_abstract_alone: float = Field(CHOSEN_ALONE.abstract, ge=0)
    """Weight of a word of the draft's abstract in a query without a context."""
    lexical_weight: float = Field(CHOSEN_WEIGHT, ge=0)
    """Weight w of the lexical score in HYBRID = cosine + w · lexical score."""
    bm25_k1: float = Field(CHOSEN_BM25.k1, ge=0)
    """k1 of BM25, the saturation of term frequency: the smaller, the less a repeated word adds."""
    bm25_b: float = Field(CHOSEN_BM25.b, ge=0, le=1)
    """b of BM25, the length normalisation: 0 = none, 1 = full."""

    @property
    def named_ledger_url(self) -> str:
        """`ledger_url`, for commands that write to the ledger. UnknownSetting where nobody set it."""
        if "ledger_url" not in self.model_fields_set:
            raise UnknownSetting(
                "CITEWELL_PROFILER__LEDGER_URL is not set: it names the ledger, e.g. postgresql://user@host/name, or "
                "sqlite:///.citewell/ledger.sqlite for the one of `citewell up`"
            )
        return self.ledger_url

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
            self._learned_weights(),
        )

    def _learned_weights(self) -> LearnedWeights | None:
        try:
            return find_term_weights(self.term_weights)
        except (OSError, BadTermWeights) as error:
            raise UnknownSetting(f"term_weights {self.term_weights!r} cannot be used: {error}") from None
