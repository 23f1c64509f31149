"""How much a request or a publication may hold. Lengths of texts are in characters (code points)."""

from __future__ import annotations

# Of a publication.
MAX_ID_BYTES = 256
MAX_TITLE = 2_000
MAX_ABSTRACT = 50_000
MAX_PASSAGE = 20_000
"""Also of a masked context and of a query's context."""
MAX_REFERENCES = 10_000
MAX_CONTEXTS = 20_000

# Of a search filter.
MAX_EXCLUDED = 10_000
MAX_VENUES = 1_000

# Of a recommendation.
MAX_TOP_K = 100
MAX_CANDIDATES = 1_000
"""Papers retrieved for a query, and papers that the reranker may be shown."""
MAX_EVIDENCE = 20
"""Citing contexts shown per paper."""
MAX_WATERMARKS = 100
MAX_BATCH = 100
"""Requests in one RecommendBatch."""
