"""ProfileQueryService: translates requests, and answers with query vectors, scores and profiles."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from citewell import __version__
from citewell.profiler.draft_vectors import DraftVectors
from citewell.profiler.encoder import GraphEncoder
from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.encoding import Encoders
from citewell.profiler.pools import Pool
from citewell.profiler.profiles import QueryWeights, query_vector
from citewell.profiler.query_map import QueryMap
from citewell.profiler.query_words import WordWeights, weigh_parts, weigh_words
from citewell.profiler.reads import get_profile, list_references, score_profiles
from citewell.profiler.v1 import profile_query_pb2, profile_query_pb2_grpc
from citewell.profiler.watermarks import Watermarks
from citewell.profiler.window_encoder import WindowEncoder
from citewell.runtime.errors import InvalidField
from citewell.scholarly.contexts import normalise
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.lexical import LexicalQuery
from citewell.scholarly.queries import Query
from citewell.scholarly.second_phase import NO_VECTOR, SecondPhaseQuery
from citewell.scholarly.words import LEXICON
from citewell.types.messages import (
    date_from_message,
    lexical_query_from_message,
    lexical_query_to_message,
    position_to_message,
    query_from_message,
    second_phase_query_to_message,
    terms_to_message,
)
from citewell.types.v1 import paper_pb2

# Most papers that one call may score. An as-of answer rescores at most 6,000: two searches of 3k papers at k = 1000.
MAX_SCORED = 12_000
MAX_CITING = 100
MAX_MATCHED_TERMS = 50

AS_OF_LIMITS = (
    "As-of goes by the citing paper's date: later revisions of a citing or cited text are not undone, and the encoder "
    "may have been trained on later text. How rare a word is follows from the own text of papers of earlier years."
)


class QueryHandlers(profile_query_pb2_grpc.ProfileQueryServiceServicer):
    """Handlers."""

    def __init__(
        self,
        database: Database,
        encoders: Encoders,
        weights: QueryWeights,
        words: WordWeights,
        watermarks: Watermarks,
        pool: Pool,
    ) -> None:
        self._database, self._encoders, self._watermarks = database, encoders, watermarks
        self._weights, self._words, self._pool = weights, words, pool
        self._drafts = DraftVectors()
        self.query_map: QueryMap | None = None
        """Maps HYBRID's query vectors. It is applied only with the encoder that it was made for."""
        self.window_encoder: WindowEncoder | None = None
        """Encodes the words around the marker for the second phase; like the map, for one encoder."""

    async def EmbedQuery(
        self, request: profile_query_pb2.EmbedQueryRequest, context: Any
    ) -> profile_query_pb2.EmbedQueryResponse:
        as_of = date_from_message(request.as_of, "as_of")
        return await self._pool.run(self._embed, query_from_message(request), as_of)

    async def ScoreProfiles(
        self, request: profile_query_pb2.ScoreProfilesRequest, context: Any
    ) -> profile_query_pb2.ScoreProfilesResponse:
        if len(request.paper_ids) > MAX_SCORED:
            raise InvalidField("paper_ids", f"{len(request.paper_ids)} ids", f"at most {MAX_SCORED}")
        if not 0 <= request.matched_terms <= MAX_MATCHED_TERMS:
            raise InvalidField("matched_terms", request.matched_terms, f"a number from 0 to {MAX_MATCHED_TERMS}")
        lexical = lexical_query_from_message(request.lexical) if request.HasField("lexical") else None
        _ = self._watermarks.view
        return await self._pool.run(self._score, request, date_from_message(request.as_of, "as_of"), lexical)

    def _score(
        self, request: profile_query_pb2.ScoreProfilesRequest, as_of: PartialDate, lexical: LexicalQuery | None
    ) -> profile_query_pb2.ScoreProfilesResponse:
        """Runs in a thread: thousands of scores take tenths of a second, also to write them into a message."""
        query = np.asarray(request.query_vector, np.float32)
        scored, unknown = score_profiles(self._database, list(request.paper_ids), query, as_of, lexical)
        return profile_query_pb2.ScoreProfilesResponse(
            scores=[
                profile_query_pb2.ProfileScore(
                    paper_id=one.paper_id,
                    score=one.score,
                    in_degree=one.in_degree,
                    content_share=one.shares[0],
                    context_share=one.shares[1],
                    citing_share=one.shares[2],
                    lexical_score=one.lexical,
                    hybrid_score=one.hybrid,
                    matched=terms_to_message(one.matched.largest(request.matched_terms)),
                )
                for one in scored
            ],
            unknown_ids=unknown,
        )

    async def GetProfile(
        self, request: profile_query_pb2.GetProfileRequest, context: Any
    ) -> profile_query_pb2.GetProfileResponse:
        _ = self._watermarks.view
        found = await self._pool.run(
            get_profile, self._database, request.paper_id, date_from_message(request.as_of, "as_of")
        )
        return profile_query_pb2.GetProfileResponse(
            profile=found.profile.tolist(),
            content=found.content.tolist(),
            in_degree=found.in_degree,
            years=[profile_query_pb2.YearSum(year=year, count=count) for year, count in found.years],
            version=found.version,
        )

    async def ListReferences(
        self, request: profile_query_pb2.ListReferencesRequest, context: Any
    ) -> profile_query_pb2.ListReferencesResponse:
        if len(request.paper_ids) > MAX_CITING:
            raise InvalidField("paper_ids", f"{len(request.paper_ids)} ids", f"at most {MAX_CITING}")
        _ = self._watermarks.view
        found = await self._pool.run(
            list_references, self._database, list(request.paper_ids), date_from_message(request.as_of, "as_of")
        )
        return profile_query_pb2.ListReferencesResponse(
            papers=[
                profile_query_pb2.PaperReferences(paper_id=citing, cited_ids=cited) for citing, cited in found.items()
            ]
        )

    async def Info(self, request: profile_query_pb2.InfoRequest, context: Any) -> profile_query_pb2.InfoResponse:
        view, encoder = self._watermarks.view, self._encoder()
        return profile_query_pb2.InfoResponse(
            version=__version__,
            encoder=paper_pb2.ModelInfo(
                name=encoder.model_id,
                hash=encoder.model_hash,
                dimension=encoder.dimension,
                max_tokens=encoder.max_tokens,
                runtime=encoder.runtime,
            ),
            alpha=view.weights.alpha,
            beta=view.weights.beta,
            gamma=self._weights.gamma,
            delta=self._weights.delta,
            settings_hash=self._settings_hash(encoder.model_hash),
            query_map=query_map.digest if (query_map := self._map_for(encoder)) else "",
            term_weights=self._words.learned.digest if self._words.learned else "",
            window_encoder=window.hash if (window := self._window_for(encoder)) else "",
            as_of_limits=AS_OF_LIMITS,
            lexical_weight=self._words.weight,
            statistics=self._watermarks.statistics.version,
            statistics_papers=self._watermarks.statistics.papers,
            lexicon_hash=LEXICON,
        )

    def _embed(self, query: Query, as_of: PartialDate) -> profile_query_pb2.EmbedQueryResponse:
        # Read once, so that the vector, the view and the positions of one answer belong to the same state.
        view, searchable = self._watermarks.view, self._watermarks.searchable
        statistics = self._watermarks.statistics.as_of(as_of)
        incomplete = not self._watermarks.complete
        encoder = self._encoder()
        context, paper = normalise(query.context), encoder.paper_text(query.title, query.abstract)
        of_context, of_paper = self._drafts.encode(encoder, context, paper)
        words, second, window = None, None, self._window_for(encoder)
        if view.words:  # points of views made before schema 0002 hold no words
            words = weigh_words(query, self._words, statistics)
        if words and of_context is not None and not as_of.known:
            parts = weigh_parts(query, words.terms.ids, statistics)
            of_window = window.encode(context) if window else NO_VECTOR
            second = SecondPhaseQuery(of_context, of_paper if of_paper is not None else NO_VECTOR, parts, of_window)
        query_map = self._map_for(encoder)
        return profile_query_pb2.EmbedQueryResponse(
            query_vector=query_vector(of_context, of_paper, self._weights).tolist(),
            context_vector=of_context.tolist() if of_context is not None else (),
            model_hash=view.model.hash,
            settings_hash=self._settings_hash(view.model.hash),
            context_cut=bool(context) and encoder.cuts(context),
            searchable=map(position_to_message, searchable),
            view=view.name,
            epoch=view.epoch,
            view_incomplete=incomplete,
            lexical=lexical_query_to_message(words) if words else None,
            statistics=statistics.version,
            hybrid_vector=query_map.vector(of_context, of_paper).tolist() if query_map else (),
            query_map=query_map.digest if query_map else "",
            term_weights=self._words.learned.digest if self._words.learned else "",
            window_encoder=window.hash if window else "",
            second_phase=second_phase_query_to_message(second) if second else None,
        )

    def _encoder(self) -> GraphEncoder:
        """The encoder of the serving view; looked up for each call, as another process may switch the view."""
        model = self._watermarks.view.model
        encoder = self._encoders.of_model(model.name, model.hash)
        assert isinstance(encoder, GraphEncoder)
        return encoder

    def _map_for(self, encoder: GraphEncoder) -> QueryMap | None:
        """The query map, if it was learned for this encoder."""
        made_for = self.query_map.encoder if self.query_map else None
        return self.query_map if made_for == encoder.model_hash else None

    def _window_for(self, encoder: GraphEncoder) -> WindowEncoder | None:
        """The window encoder, if its vectors belong to the profiles of this encoder."""
        made_for = self.window_encoder.made_for if self.window_encoder else None
        return self.window_encoder if made_for == encoder.model_hash else None

    def _settings_hash(self, model_hash: str) -> str:
        text = f"{model_hash} {self._weights.gamma!r} {self._weights.delta!r} {self._words} {LEXICON}"
        if self.query_map and self.query_map.encoder == model_hash:
            text += f" {self.query_map.digest}"
        if self.window_encoder and self.window_encoder.made_for == model_hash:
            text += f" window {self.window_encoder.hash}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]
