"""How much a request or a publication may hold. Lengths of texts are in characters (code points)."""

from __future__ import annotations

# Of a publication. Whatever exceeds one of these is refused at Publish, and is a dead letter if it comes past Publish.
# Together they keep every accepted event small enough for one message and one application to the ledger.
MAX_EVENT_BYTES = 8 << 20
"""Of a whole event as it is stored in the log."""
MAX_ID_BYTES = 256
"""Of a paper's id and of an event's."""
MAX_REVISION = 2**63 - 1
MAX_TITLE = 2_000
MAX_ABSTRACT = 50_000
MAX_AUTHORS = 20_000
"""The longest known list has about 15,000."""
MAX_AUTHOR = 500
MAX_VENUE = 1_000
MAX_EXTERNAL_IDS = 100
MAX_SCHEME_BYTES = 64
MAX_EXTERNAL_ID_BYTES = 512
MAX_DESCRIPTION_BYTES = 1 << 20
"""Of title, abstract, authors, venue and external ids together: what the index stores of a paper and answers with."""
MAX_REFERENCES = 10_000
MAX_PASSAGES = 10_000
MAX_PASSAGE = 20_000
"""Also of a masked context and of a query's context."""
MAX_SECTION = 1_000
MAX_MARKERS = 2_000
"""Of one passage."""
MAX_CONTEXTS = 10_000
"""Masked contexts and those cut from passages together, one for each marker and paper that it cites. Two cores encode
so many in about a minute, half of the time that the worker gives the ledger for a batch."""
MAX_VECTORS = 2 * (MAX_CONTEXTS + 1)
"""One for each context and one for the paper, of two encoders."""
MAX_VECTOR_BYTES = 1 << 16
MAX_HASH_BYTES = 256
"""Of a text's or an encoder's hash beside a vector."""
MAX_RETRACTION_REASON = 2_000

# Of a search filter.
MAX_EXCLUDED = 10_000
"""That a caller may exclude. The recommender excludes the draft itself as well, so the index takes one more."""
MAX_VENUES = 1_000

# Of a search by words.
MAX_QUERY_TERMS = 5_000
"""Different words of a query. A text that has more is searched by those that weigh most."""

# Of a recommendation.
MAX_TOP_K = 100
MAX_CANDIDATES = 1_000
"""Papers retrieved for a query, and papers that the reranker may be shown."""
MAX_EVIDENCE = 20
"""Citing contexts shown per paper."""
MAX_WATERMARKS = 100
MAX_BATCH = 100
"""Requests in one RecommendBatch."""
