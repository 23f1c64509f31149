"""The settings chosen on validation, used for every set and every figure, and why."""

from __future__ import annotations

from citewell.profiler.lexical import CHOSEN_BM25, CHOSEN_FIELDS, CHOSEN_TERMS, CHOSEN_WEIGHT
from citewell.profiler.profiles import CHOSEN_PROFILE, CHOSEN_QUERY
from citewell.recommender.settings import RecommenderSettings

PROFILE = CHOSEN_PROFILE
QUERY = CHOSEN_QUERY
REASON = (
    "Chosen for every set: **α = 2, β = 0.5, γ = 0.6, δ = 0.4, vectors normalised before they are added**. The "
    "paper's α + β = 1 is not kept: with this encoder others may speak louder than α = 0.8 lets them. MRR rises a"
    " little up to α = 3 or 4 while R@300, the ceiling of any reranker, falls again; at α = 2 both are within 0.7"
    " points of their best on both sets (R@10 within 1.4). β moves little. Raw vectors are no better than "
    "normalised ones, so the simpler rule stays: every text has one voice of length one."
)

BM25 = CHOSEN_BM25
FIELDS = CHOSEN_FIELDS
TERMS = CHOSEN_TERMS
LEXICAL = CHOSEN_WEIGHT
JOINED: float = RecommenderSettings.model_fields["second_phase_weight"].default
"""The weight of the second phase's scores beside the reranker's log-odds."""
HYBRID_REASON = (
    "**HYBRID = cosine of eq. 5 + 3 · lexical profile.** The lexical profile is BM25 over one bag of words a "
    "paper (title × 3, abstract, half of every context that cites it; k1 = 1.2, b = 0.4), divided by the weight "
    "of the query's own words, so that scores of different queries compare. A query's word counts 0.2 + "
    "0.8·exp(−d/5) at d words from the marker. Both parts are sums over one paper's own data, so an index can "
    "serve them: a dense and a sparse dot product. What did not help: shrinkage lifts eq. 3 on neurips25 only, "
    "and nothing beside the lexical profile; several vectors a paper are no better than the mean (neurips25) or "
    "worse (acl), nearest train contexts are worse; a popularity term helps eq. 3 on neurips25, harms it on acl, "
    "and brings nothing to the fusion; fusing ranks reaches the same R@300 and a lower MRR. The constants of the "
    "lexical profile and its weight were tried on a seeded sample of 500 to 600 validation contexts of neurips25 "
    "(the lexical ones of acl too), by hand, not by a full grid."
)
