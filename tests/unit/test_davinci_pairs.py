"""Cutting and joining of pairs: what must never be cut, and that nothing exceeds its budget."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citewell.reranker.pairs import CandidateText, PairTokenizer, TokenBudget, pair_length
from citewell.scholarly.queries import Query
from tests.unit.davinci_world import tokenizer

TOKENIZER = tokenizer()
MARKER = TOKENIZER.token_to_id("targetcit")
SEP = TOKENIZER.token_to_id("[SEP]")
BUDGET = TokenBudget(context=9, query_title=4, query_abstract=3, candidate=8, mentions=10, window=64)
PAIRS = PairTokenizer(TOKENIZER, BUDGET)

words = st.lists(st.sampled_from(["topic1", "method", "we", "OTHERCIT", "zq", ".", "study"]), max_size=40).map(" ".join)
marked = st.tuples(words, words).map(lambda sides: f"{sides[0]} TARGETCIT {sides[1]}")


def ids(text: str) -> list[int]:
    found: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
    return found


@given(marked, words, words)
@settings(max_examples=150, deadline=None)
def test_the_marker_stays_in_the_middle_of_the_context(context: str, title: str, abstract: str) -> None:
    (query,) = PAIRS.queries([Query(context, title, abstract)])
    whole = ids(context)
    width = min(BUDGET.context, len(whole))
    kept = query[:width].tolist()
    assert kept.count(MARKER) == 1
    before, after = kept.index(MARKER), width - kept.index(MARKER) - 1
    left, right = whole.index(MARKER), len(whole) - whole.index(MARKER) - 1
    # More than one token off the middle only if that side of the text is used up.
    assert abs(before - after) <= 1 or before == left or after == right
    tail = ids(title)[: BUDGET.query_title] + ids(abstract)[: BUDGET.query_abstract]
    assert query[width:].tolist() == tail


@given(words, words, st.lists(marked, max_size=3))
@settings(max_examples=150, deadline=None)
def test_a_candidates_title_is_never_cut(title: str, abstract: str, mentions: list[str]) -> None:
    (candidate,) = PAIRS.candidates([CandidateText(title, abstract, tuple(mentions))])
    whole = ids(title)[: BUDGET.candidate_half]
    assert candidate[: len(whole)].tolist() == whole
    own = max(len(whole), min(BUDGET.candidate, len(whole) + len(ids(abstract))))
    assert candidate[len(whole) : own].tolist() == ids(abstract)[: own - len(whole)]
    assert len(candidate) <= min(BUDGET.candidate_half, own + BUDGET.mentions)


@given(words, words, marked)
@settings(max_examples=60, deadline=None)
def test_any_pair_fits_the_window(title: str, abstract: str, context: str) -> None:
    (query,) = PAIRS.queries([Query(context * 3, title * 3, abstract * 3)])
    (candidate,) = PAIRS.candidates([CandidateText(title * 9, abstract * 9, (context,) * 3)])
    assert pair_length(query, candidate) <= BUDGET.window


@pytest.mark.parametrize(
    ("mentions", "kept"), [((), 18), (("by TARGETCIT",), 15), (("we study TARGETCIT study",) * 2, 8)]
)
def test_the_abstract_takes_what_mentions_leave(mentions: tuple[str, ...], kept: int) -> None:
    filling = PairTokenizer(TOKENIZER, replace(BUDGET, abstract_fills=True))
    text = CandidateText("topic1 method", "we study " * 20, mentions)
    (filled,), (usual,) = filling.candidates([text]), PAIRS.candidates([text])
    said = usual[BUDGET.candidate :].tolist()
    assert filled.tolist() == ids(f"{text.title} {text.abstract}")[:kept] + said


def test_every_mention_keeps_its_marker() -> None:
    said = ("we study method TARGETCIT of topic1 in topic1", "by TARGETCIT .")
    (candidate,) = PAIRS.candidates([CandidateText("topic1", "", said)])
    parts = " ".join(map(str, candidate.tolist())).split(f" {SEP} ")
    assert len(parts) == 3
    assert all(str(MARKER) in part.split() for part in parts[1:])


def test_a_pair_reads_cls_query_sep_candidate_sep() -> None:
    (query,) = PAIRS.queries([Query("by TARGETCIT", "study", "")])
    short, long = PAIRS.candidates([CandidateText("topic1", ""), CandidateText("method of topic1", "we study")])
    batch = PAIRS.pack([(query, short), (query, long)])
    cls = TOKENIZER.token_to_id("[CLS]")
    first = [cls, *ids("by targetcit study"), SEP, *ids("topic1"), SEP]
    assert batch.input_ids[0, : len(first)].tolist() == first
    assert batch.attention_mask.sum(axis=1).tolist() == [len(first), pair_length(query, long)]
    assert batch.token_type_ids[0].tolist() == [0] * 5 + [1] * 2 + [0] * (batch.input_ids.shape[1] - 7)
    assert (batch.input_ids[0, len(first) :] == TOKENIZER.token_to_id("[PAD]")).all()


def test_padding_to_a_bucket_changes_nothing_but_the_padding() -> None:
    (query,) = PAIRS.queries([Query("by TARGETCIT", "", "")])
    (candidate,) = PAIRS.candidates([CandidateText("topic1", "")])
    tight, wide = PAIRS.pack([(query, candidate)]), PAIRS.pack([(query, candidate)], 32)
    width = tight.input_ids.shape[1]
    assert wide.input_ids.shape == (1, 32)
    np.testing.assert_array_equal(wide.input_ids[:, :width], tight.input_ids)
    with pytest.raises(ValueError, match="does not fit"):
        PAIRS.pack([(query, candidate)], width - 1)


def test_a_query_without_a_context_is_its_title() -> None:
    (query,) = PAIRS.queries([Query("", "we study", "")])
    assert query.tolist() == ids("we study")


@pytest.mark.parametrize("budget", [{"context": 4}, {"context": 300}, {"candidate": 200, "mentions": 100}])
def test_budgets_that_cannot_hold_are_refused(budget: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="budgets"):
        TokenBudget(**budget)


def test_fields_of_a_budget_are_changed_by_name() -> None:
    assert BUDGET.changed("") == BUDGET
    changed = BUDGET.changed("context=12, candidate=10")
    assert (changed.context, changed.candidate, changed.mentions) == (12, 10, BUDGET.mentions)


@pytest.mark.parametrize("fields", ["words=5", "context", "context=-9", "context=many"])
def test_a_field_no_budget_has_is_refused(fields: str) -> None:
    with pytest.raises(ValueError, match="is no field of a budget"):
        BUDGET.changed(fields)
