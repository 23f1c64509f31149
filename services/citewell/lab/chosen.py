"""The settings chosen on validation, used for every set and every figure, and why."""

from __future__ import annotations

from citewell.lab.lexical import Bm25, FieldWeights, TermWeights
from citewell.profiler.profiles import ProfileWeights, QueryWeights

PROFILE = ProfileWeights(alpha=2.0, beta=0.5)
QUERY = QueryWeights(gamma=0.6, delta=0.4)
BM25 = Bm25(k1=1.2, b=0.4)
FIELDS = FieldWeights(title=3.0, abstract=1.0, contexts=0.5)
TERMS = TermWeights(reach=5.0, floor=0.2, title=0.5, abstract=0.0)
LEXICAL = 3.0
REASON = ""
HYBRID_REASON = ""
