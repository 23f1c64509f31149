"""The learned weights of a query's words: the features of words, the file, and the weights in a search."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from citewell.profiler.ledger.statistics import NO_STATISTICS
from citewell.profiler.query_words import WordWeights, weigh_words
from citewell.profiler.settings import ProfilerSettings
from citewell.profiler.term_weights import (
    OFF,
    PACKAGED,
    BadTermWeights,
    LearnedWeights,
    find_term_weights,
    read_term_weights,
    term_weights_text,
)
from citewell.profiler.word_features import FEATURES, word_features
from citewell.runtime.settings import UnknownSetting
from citewell.scholarly.queries import Query
from citewell.scholarly.words import count_terms, term_id

CONTEXT = "Old roads. We use BERT-Large, iBOT OTHERCIT and deep nets TARGETCIT by ml, then nets. After all."


def learned(kept: float = 0.0, **weights: float) -> LearnedWeights:
    return read_term_weights(term_weights_text(np.array([weights.get(name, 0.0) for name in FEATURES]), kept, {}))


def features_of(word: str, context: str = CONTEXT, title: str = "") -> dict[str, float]:
    weights = dict.fromkeys(count_terms(f"{context} {title}"), 1.0)
    rows = word_features(context, title, weights)
    row = rows[sorted(weights).index(term_id(word))]
    return dict(zip(FEATURES, row.tolist(), strict=True))


def weights_of(query: Query, weights: WordWeights) -> dict[int, float]:
    terms = weigh_words(query, weights, NO_STATISTICS).terms
    return dict(zip(terms.ids.tolist(), terms.values.tolist(), strict=True))


def test_where_a_word_stands() -> None:
    near = features_of("net")
    assert near["distance"] == pytest.approx(np.log(2))
    assert near["before"] == pytest.approx(np.exp(-1 / 5))
    assert near["wide"] == pytest.approx(np.exp(-1 / 15))
    assert near["repeated"] == pytest.approx(np.log(2))  # described by the occurrence beside the marker
    assert (near["sentence"], near["clause"], near["citations"], near["behind"]) == (1, 1, 0, 0)
    behind = features_of("ml")
    assert (behind["before"], behind["behind"], behind["clause"], behind["short"]) == (0, 1, 1, 1)
    assert features_of("ibot")["citations"] == 1
    bert = features_of("bert")
    assert (bert["clause"], bert["citations"], bert["sentence"]) == (0, 1, 1)
    assert [features_of(word)["sentence"] for word in ("road", "after", "all")] == [0, 0, 0]
    assert features_of("net", f"targetcit {CONTEXT}", "") == near  # a word that is like the marker in lower case


def test_how_a_word_is_written() -> None:
    assert [features_of(word)["capital"] for word in ("bert", "large", "ibot", "old", "after", "deep")] == [
        1,
        1,
        0,
        0,
        0,
        0,
    ]
    assert [features_of(word)["capitals"] for word in ("bert", "large", "ibot", "net")] == [1, 0, 1, 0]
    assert [features_of(word)["hyphen"] for word in ("bert", "large", "ibot")] == [1, 1, 0]
    assert features_of("deep")["length"] == pytest.approx(np.log(4))


def test_words_of_the_title_and_of_neither_text() -> None:
    both = features_of("net", title="Nets of roads")
    assert (both["titled"], both["outside"]) == (1, 0)
    alone = features_of("forest", title="Forests")
    assert (alone["titled"], alone["outside"], alone["distance"], alone["sentence"]) == (1, 1, 0, 0)
    assert alone["length"] == pytest.approx(np.log(6))
    weights = {term_id("unseen"): 0.0}
    row = dict(zip(FEATURES, word_features(CONTEXT, "", weights)[0], strict=True))
    assert (row["titled"], row["outside"], row["length"]) == (0, 1, 0)
    assert np.isfinite(row["weight"])


def test_the_factors_weigh_words_and_the_sum_stays_one() -> None:
    query = Query(CONTEXT, "Forests")
    plain = weights_of(query, WordWeights())
    assert weights_of(query, WordWeights(learned=learned())) == pytest.approx(plain)
    doubled = weights_of(query, WordWeights(learned=learned(outside=float(np.log(2)))))
    forest = term_id("forest")
    expected = {term: value * (2 if term == forest else 1) / (1 + plain[forest]) for term, value in plain.items()}
    assert doubled == pytest.approx(expected, rel=1e-5)
    half = weights_of(query, WordWeights(learned=learned(0.5, outside=float(np.log(2)))))
    assert half == pytest.approx({term: (plain[term] + doubled[term]) / 2 for term in plain}, rel=1e-5)


def test_a_factor_has_limits() -> None:
    weights = weights_of(Query(CONTEXT), WordWeights(learned=learned(sentence=1000.0)))
    assert sum(weights.values()) == pytest.approx(1.0)
    assert weights[term_id("road")] > 0


def test_drafts_without_a_context_are_weighed_as_before() -> None:
    draft = Query(title="parser", abstract="lexicon")
    assert weights_of(draft, WordWeights(learned=learned(outside=3.0, titled=3.0))) == weights_of(draft, WordWeights())


def test_a_file_keeps_weights_and_tells_them_apart(tmp_path: Path) -> None:
    first = learned(0.25, near=1.5, short=-2.0)
    assert first.kept == 0.25
    assert dict(zip(FEATURES, first.weights.tolist(), strict=True))["short"] == -2.0
    digests = {each.digest for each in (first, learned(0.25, near=1.5), learned(0.5, near=1.5, short=-2.0))}
    assert len(digests) == 3
    file = tmp_path / "weights.json"
    file.write_text(term_weights_text(first.weights, 0.25, {"made": "by a test"}))
    found = find_term_weights(str(file))
    assert found is not None
    assert found.digest == first.digest
    assert find_term_weights(OFF) is None
    assert find_term_weights(PACKAGED) is not None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "no JSON"),
        ("[]", 'with "version": 1'),
        ('{"version": 1}', 'an object "weights"'),
        ('{"version": 1, "kept": 0.5, "weights": {"colour": 1}}', "features .'colour'. are unknown"),
        ('{"version": 1, "weights": {}}', "KeyError: 'kept'"),
        ('{"version": 1, "kept": 2, "weights": {}}', "kept, 2.0, from 0 to 1"),
        ('{"version": 1, "kept": 0.5, "weights": {"near": "much"}}', "ValueError"),
        (json.dumps({"version": 1, "kept": 0.5, "weights": {"near": float("inf")}}), "must be finite"),
    ],
)
def test_what_is_no_file_of_weights_is_named(tmp_path: Path, content: str, said: str) -> None:
    with pytest.raises(BadTermWeights, match=said):
        read_term_weights(content)
    file = tmp_path / "weights.json"
    file.write_text(content)
    with pytest.raises(UnknownSetting, match=f"term_weights .*weights.json' cannot be used: .*{said}"):
        _ = ProfilerSettings(term_weights=str(file)).word_weights


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    file = tmp_path / "query-map.npz"
    file.write_bytes(b"PK\x03\x04\xff\xfe")
    with pytest.raises(UnknownSetting, match=r"term_weights .*query-map\.npz' cannot be used: it is no JSON"):
        _ = ProfilerSettings(term_weights=str(file)).word_weights


def test_the_profiler_weighs_words_by_its_setting() -> None:
    assert ProfilerSettings(term_weights=OFF).word_weights.learned is None
    packaged = ProfilerSettings().word_weights.learned
    assert packaged is not None
    assert packaged.digest in repr(ProfilerSettings().word_weights)  # so the settings hash of answers changes with it
    with pytest.raises(UnknownSetting, match="term_weights 'no-such-file' cannot be used"):
        _ = ProfilerSettings(term_weights="no-such-file").word_weights
