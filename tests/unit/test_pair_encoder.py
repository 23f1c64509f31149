"""The encoder's output for a side is cached within the limit, and the cache changes no result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from citewell.inference.davinci_graph import davinci_pairs, davinci_sides
from citewell.inference.pair_encoder import PairEncoder
from citewell.inference.sessions import Precision, Runtime, open_session
from tests.tiny_models import RERANKER_CONFIG, tiny_davinci_weights, tiny_tokenizer

VOCABULARY = tiny_tokenizer().get_vocab_size()
Arrays = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


class Counted:
    """An encoder that counts cached and computed sides."""

    def __init__(self, folder: Path, kept_bytes: int, *, apart: int = 1) -> None:
        weights = tiny_davinci_weights(VOCABULARY)
        sessions = []
        for write in (davinci_sides, davinci_pairs):
            path = folder / f"{write.__name__}-{apart}.onnx"
            onnx.save(write({**RERANKER_CONFIG, "apart_layers": apart}, weights), path)
            sessions.append(open_session(path, Runtime.ONNXRUNTIME, Precision.FP32, 1))
        self.counts: list[tuple[int, int]] = []
        self.encoder = PairEncoder(
            *sessions, apart=apart > 0, kept_bytes=kept_bytes, on_sides=lambda *each: self.counts.append(each)
        )

    def encode(self, arrays: Arrays) -> NDArray[np.float32]:
        return self.encoder.encode(*arrays)


def pairs(queries: list[int], candidates: list[int], lengths: tuple[int, int] = (6, 9)) -> Arrays:
    """A pair of each query and candidate; their numbers serve as tokens."""
    rows = []
    for query, candidate in zip(queries, candidates, strict=True):
        sides = [
            np.random.default_rng((kind, n)).integers(4, VOCABULARY, length + n % 3)
            for kind, (n, length) in enumerate(zip((query, candidate), lengths, strict=True))
        ]
        rows.append((np.concatenate(sides), np.repeat([0, 1], [len(side) for side in sides])))
    width = max(len(ids) for ids, _ in rows)
    ids, mask, types = (np.zeros((len(rows), width), np.int64) for _ in range(3))
    for at, (tokens, kinds) in enumerate(rows):
        ids[at, : len(tokens)], mask[at, : len(tokens)], types[at, : len(tokens)] = tokens, 1, kinds
    return ids, mask, types


def test_a_side_is_read_once_and_changes_nothing(tmp_path: Path) -> None:
    counted = Counted(tmp_path, kept_bytes=1 << 20)
    first = counted.encode(pairs([1, 1, 1], [1, 2, 3]))
    assert counted.counts == [(0, 4)], "one query, three candidates"
    again = counted.encode(pairs([1, 1, 2], [3, 4, 3]))
    assert counted.counts[1:] == [(2, 2)], "the query and a candidate are kept, another of each is new"
    np.testing.assert_allclose(again[0], first[2], atol=1e-6)
    alone = Counted(tmp_path, kept_bytes=0).encode(pairs([2], [3]))
    np.testing.assert_allclose(again[2:], alone, atol=1e-5)


def test_with_no_room_all_is_read_again(tmp_path: Path) -> None:
    counted = Counted(tmp_path, kept_bytes=0)
    first, second = (counted.encode(pairs([1, 1], [1, 2])) for _ in range(2))
    assert counted.counts == [(0, 3), (0, 3)]
    np.testing.assert_array_equal(first, second)


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    # Three sides of at most 11 tokens of 16 half-precision values.
    counted = Counted(tmp_path, kept_bytes=3 * 11 * 16 * 2)
    for query, candidate in [(1, 1), (1, 2), (1, 1), (1, 3), (1, 1), (1, 2)]:
        counted.encode(pairs([query], [candidate]))
    assert [computed for _, computed in counted.counts] == [2, 1, 0, 1, 0, 1]


def test_equal_tokens_on_the_other_side_are_another_side(tmp_path: Path) -> None:
    counted = Counted(tmp_path, kept_bytes=1 << 20)
    half = np.random.default_rng(0).integers(4, VOCABULARY, 5)
    ids = np.concatenate([half, half])[None]
    counted.encode((ids, np.ones_like(ids), np.repeat([0, 1], 5)[None]))
    assert counted.counts == [(0, 2)]


def test_the_sides_see_each_other_in_the_layers_that_are_left(tmp_path: Path) -> None:
    """A model without layers apart reads the same pairs differently; both depend on either side."""
    apart, whole = Counted(tmp_path, 1 << 20), Counted(tmp_path, 1 << 20, apart=0)
    arrays = pairs([1, 1, 2], [1, 2, 1])
    for counted in (apart, whole):
        e = counted.encode(arrays)
        assert np.abs(e[0] - e[1]).max() > 1e-3
        assert np.abs(e[0] - e[2]).max() > 1e-3
    assert np.abs(apart.encode(arrays) - whole.encode(arrays)).max() > 1e-3
    assert whole.counts == [], "it keeps nothing"


@pytest.mark.parametrize("apart", [-1, 2])
def test_at_least_the_last_layer_reads_pairs(apart: int) -> None:
    with pytest.raises(ValueError, match=f"apart_layers is {apart}"):
        davinci_sides({**RERANKER_CONFIG, "apart_layers": apart}, tiny_davinci_weights(VOCABULARY))
