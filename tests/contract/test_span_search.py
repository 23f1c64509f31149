"""Search over citing contexts by words: every store answers like a simple search over all spans."""

from collections import Counter, defaultdict
from dataclasses import replace
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from citewell.index.index import Index
from citewell.index.points import SpanPoint
from citewell.index.queries import EvidenceSearch, FoundSpans, SpanSearch
from citewell.runtime.errors import FailedPrecondition, InvalidField
from citewell.scholarly.dates import PartialDate, is_before
from citewell.scholarly.lexical import LexicalQuery, Terms, lexical_score
from citewell.scholarly.papers import SearchFilter
from citewell.scholarly.words import count_terms
from tests.store_world import (
    LOCAL_MODE,
    Adapter,
    cosine,
    paper,
    span,
    vector,
    write,
)

pytestmark = LOCAL_MODE

K1, B, DELTA = 1.5, 0.75, 1.0
WORDS = ["tide", "lantern", "drift", "harbour", "rope", "sail", "keel", "mast", "current", "ebb"]
PHRASES = [
    " ".join(WORDS[(number + step * (1 + number // 10)) % 10] for step in range(2 + number % 4)) for number in range(25)
]
PAPERS = 12


def say(citing: int, cited: int, **changes: object) -> SpanPoint:
    """A context with a phrase about the cited paper; some contexts write it in capitals or with other spaces."""
    phrase = PHRASES[(citing * 7 + cited * 3) % 25]
    written = phrase.upper() if citing % 3 == 0 else phrase.replace(" ", "  ") if citing % 3 == 1 else phrase
    text = f"We see {written} as harbour keepers of year {citing} do"
    return span(
        citing,
        cited,
        text=text,
        terms=Terms.of(count_terms(text)),
        span_offset=7,
        span_length=len(written),
        span_terms=Terms.of(count_terms(written)),
        vector=vector(5000 + citing * 50 + cited),
        **changes,
    )


SAID = [say(citing, cited) for citing in range(20, 45) for cited in range(PAPERS) if (citing + cited) % 4]


@pytest.fixture
async def said(index: Index) -> Index:
    await write(index, *map(paper, range(PAPERS)))
    await write(index, paper(3, version=2, hidden=True))
    await write(index, *SAID)
    return index


def phrase_of(said: SpanPoint) -> str:
    return " ".join(said.text[said.span_offset : said.span_offset + said.span_length].lower().split())


def digest(phrase: str) -> bytes:
    return blake2b(phrase.encode(), digest_size=16).digest()


def plain(spans: list[SpanPoint], search: SpanSearch) -> dict[str, tuple[int, int, dict[str, int]]]:
    """For each phrase its ranks by BM25-Okapi and BM25+, and the support of the papers cited for it."""
    admitted = [
        each
        for each in spans
        if (not search.published_before.known or is_before(each.published, search.published_before))
        and each.citing_id not in search.excluded_citing_ids
        and each.cited_id not in search.filter.excluded_ids
    ]
    cited: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for each in admitted:
        cited[phrase_of(each)][each.cited_id].add(each.citing_id)
    counts = {phrase: count_terms(phrase) for phrase in cited}
    mean = sum(count.total() for count in counts.values()) / max(len(counts), 1)
    known = {each.paper.id for each in map(paper, range(PAPERS)) if search.filter.admits(each.paper)} - {"paper-003"}
    answers = {phrase for phrase, papers in cited.items() if papers.keys() & known}
    okapi, plus = Counter[str](), Counter[str]()
    for term, wanted in zip(search.terms.ids.tolist(), search.terms.values.tolist(), strict=True):
        having = [phrase for phrase, count in counts.items() if count[term]]
        for phrase in having:
            count = counts[phrase][term]
            repeated = count * (K1 + 1) / (count + K1 * (1 - B + B * (counts[phrase].total() / mean)))
            rarity = float(np.log(1 + (len(counts) - len(having) + 0.5) / (len(having) + 0.5)))
            okapi[phrase] += wanted * rarity * repeated
            plus[phrase] += wanted * float(np.log((len(counts) + 1) / len(having))) * (DELTA + repeated)
    ranks = [
        {
            phrase: rank
            for rank, phrase in enumerate(
                sorted(answers & scores.keys(), key=lambda each: (-scores[each], digest(each))), 1
            )
            if rank <= search.prefetch
        }
        for scores in (okapi, plus)
    ]
    return {
        phrase: (
            ranks[0].get(phrase, 0),
            ranks[1].get(phrase, 0),
            {key: len(cited[phrase][key]) for key in cited[phrase].keys() & known},
        )
        for phrase in ranks[0].keys() | ranks[1].keys()
    }


def told(found: FoundSpans) -> dict[str, tuple[int, int, dict[str, int]]]:
    return {
        " ".join(each.text.lower().split()): (
            each.okapi_rank,
            each.plus_rank,
            {paper.context.cited_id: paper.support for paper in each.papers},
        )
        for each in found.spans
    }


searches = st.builds(
    SpanSearch,
    terms=st.dictionaries(
        st.sampled_from(sorted(term for word in [*WORDS, "unheard"] for term in count_terms(word))),
        st.integers(1, 3),
        min_size=1,
        max_size=6,
    ).map(lambda counts: Terms.of({term: float(count) for term, count in counts.items()})),
    prefetch=st.integers(1, 30),
    published_before=st.sampled_from([PartialDate(), PartialDate(2020), PartialDate(2015, 3), PartialDate(1990)]),
    excluded_citing_ids=st.lists(st.sampled_from([f"paper-{citing:03}" for citing in range(20, 30)]), max_size=4),
    filter=st.builds(
        SearchFilter,
        year_from=st.sampled_from([0, 1994]),
        excluded_ids=st.frozensets(st.sampled_from([f"paper-{number:03}" for number in range(PAPERS)]), max_size=3),
    ),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(search=searches)
async def test_spans_are_ranked_by_words_among_those_admitted(said: Index, search: SpanSearch) -> None:
    assert told(await said.search_spans(search)) == plain(SAID, search)


async def test_spans_follow_writes_and_restarts(said: Index, adapter: Adapter) -> None:
    search = SpanSearch(Terms.of(count_terms("tide lantern keel")), prefetch=30)
    assert told(await said.search_spans(search)) == plain(SAID, search)
    hidden, moved, added = SAID[0], SAID[5], say(50, 1)
    changed = replace(moved, version=2, text=added.text, span_length=added.span_length, span_terms=added.span_terms)
    await write(said, replace(hidden, version=2, hidden=True), changed, added)
    now = [each for each in SAID if each not in (hidden, moved)] + [changed, added]
    expected = plain(now, search)
    assert told(await said.search_spans(search)) == expected
    await said.close()
    again = await adapter.restart()
    assert told(await again.search_spans(search)) == expected
    await again.close()


async def test_a_span_names_its_newest_context_and_its_nearest_cosine(said: Index) -> None:
    query = vector(9)
    found = await said.search_spans(SpanSearch(Terms.of(count_terms("tide sail")), query, 10))
    texts = [" ".join(each.text.lower().split()) for each in found.spans]
    assert len(set(texts)) == len(texts)
    nearest: dict[str, float] = {}
    for each in SAID:
        if each.cited_id != "paper-003":
            phrase = phrase_of(each)
            nearest[phrase] = max(nearest.get(phrase, -2.0), cosine(query, each.vector))
    by_cosine = sorted(nearest, key=lambda phrase: -nearest[phrase])[:10]
    assert {each.cosine_rank for each in found.spans} >= set(range(1, 11))
    ranks = dict(zip(texts, (each.cosine_rank for each in found.spans), strict=True))
    assert [nearest[phrase] for phrase in sorted(by_cosine, key=lambda phrase: ranks[phrase])] == pytest.approx(
        [nearest[phrase] for phrase in by_cosine]
    )
    for phrase, span_ in zip(texts, found.spans, strict=True):
        assert span_.cosine == pytest.approx(nearest[phrase], abs=1e-6)
        assert span_.papers == sorted(span_.papers, key=lambda each: (-each.support, each.context.cited_id))
        for each in span_.papers:
            same = [one for one in SAID if phrase_of(one) == phrase and one.cited_id == each.context.cited_id]
            assert each.context.published == max(one.published for one in same)
            assert each.context.text in {one.text for one in same}
            assert phrase_of(each.context) == phrase


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        ("terms", {"terms": Terms.of({})}),
        ("terms.values[0]", {"terms": Terms.of({1: -1.0})}),
        ("prefetch", {"prefetch": 501}),
        ("vector", {"vector": np.ones(3, np.float32)}),
    ],
)
async def test_a_bad_span_search_names_its_field(said: Index, field: str, asked: dict[str, object]) -> None:
    with pytest.raises(InvalidField) as refused:
        await said.search_spans(replace(SpanSearch(Terms.of({1: 1.0})), **asked))  # type: ignore[arg-type]
    assert refused.value.field == field
    with pytest.raises(FailedPrecondition, match="encoder-b"):
        await said.search_spans(SpanSearch(Terms.of({1: 1.0}), model_hash="encoder-b"))


@pytest.mark.parametrize("mean_length", [0.0, 25.0])
@pytest.mark.parametrize("with_vector", [True, False])
async def test_evidence_adds_words_to_the_cosine(said: Index, mean_length: float, with_vector: bool) -> None:
    words = Terms.of(dict.fromkeys(count_terms("tide keel lantern rope"), 0.25))
    query = LexicalQuery(words, 0.8, k1=1.2, b=0.4, mean_length=mean_length)
    asked = vector(9) if with_vector else np.empty(0, np.float32)
    cited = ["paper-001", "paper-005"]
    found = await said.search_evidence(EvidenceSearch(cited, 6, asked, PartialDate(2025), ["paper-022"], lexical=query))
    compared = [
        each for each in SAID if each.cited_id in cited and each.published.year < 2025 and each.citing_id != "paper-022"
    ]
    if not mean_length:
        lengths = [float(each.terms.values.sum()) for each in compared]
        query = replace(query, mean_length=sum(lengths) / len(lengths))
    for cited_id in cited:
        scores = {
            each.citing_id: (cosine(asked, each.vector) if with_vector else 0)
            + 0.8 * lexical_score(query, each.terms, float(each.terms.values.sum()))
            for each in compared
            if each.cited_id == cited_id
        }
        best = sorted(scores, key=lambda citing: (-round(scores[citing], 6), citing))[:6]
        assert [piece.span.citing_id for piece in found[cited_id]] == best
        assert [piece.score for piece in found[cited_id]] == pytest.approx([scores[each] for each in best], abs=1e-5)
        assert all(piece.span.text[7:].startswith(tuple("tldhrskmceTLDHRSKMCE")) for piece in found[cited_id])
        assert all(piece.span.span_length for piece in found[cited_id])
