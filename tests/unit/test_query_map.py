"""The query map: its file, its vectors, and that it can be learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from citewell.profiler.query_map import OFF, BadQueryMap, find_query_map, read_query_map, write_query_map

C = np.array([[0.5, 0.25], [0.0, 1.0]])
P = np.array([[1.0, 0.0], [0.5, 0.5]])


def test_the_vector_is_the_sum_of_both_parts(tmp_path: Path) -> None:
    mapped = write_query_map(tmp_path / "map.npz", C, P, "encoder")
    context, content = np.array([1.0, 2.0]), np.array([4.0, 0.0])
    np.testing.assert_allclose(mapped.vector(context, content), [4.5, 2.25])
    np.testing.assert_allclose(mapped.vector(context, None), [0.5, 2.25])
    np.testing.assert_allclose(mapped.vector(None, content), [4.0, 0.0])
    with pytest.raises(ValueError, match="needs a context"):
        mapped.vector(None, None)


def test_the_digest_tells_maps_apart(tmp_path: Path) -> None:
    first = write_query_map(tmp_path / "a.npz", C, P, "encoder")
    assert write_query_map(tmp_path / "b.npz", C, P, "encoder").digest == first.digest
    assert write_query_map(tmp_path / "c.npz", P, C, "encoder").digest != first.digest
    assert write_query_map(tmp_path / "d.npz", C, P, "other").digest != first.digest


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no archive", "no archive of the arrays"),
        (b"PK\x03\x04 cut off", "no archive of the arrays"),
        ((C, P[:1]), "square and of one size"),
        ((C * np.nan, P), "not finite"),
    ],
)
def test_what_is_no_map_is_named(tmp_path: Path, content: bytes | tuple[np.ndarray, np.ndarray], said: str) -> None:
    file = tmp_path / "map.npz"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        np.savez(file, context=content[0], paper=content[1], encoder=np.array("encoder"))
    with pytest.raises(BadQueryMap, match=said):
        read_query_map(file)


def test_a_named_map_must_be_for_the_encoder(tmp_path: Path) -> None:
    file = tmp_path / "map.npz"
    write_query_map(file, C, P, "encoder")
    found = find_query_map(str(file), "encoder")
    assert found is not None
    assert found.encoder == "encoder"
    with pytest.raises(BadQueryMap, match="made for the encoder encoder, not for other"):
        find_query_map(str(file), "other")
    assert find_query_map(OFF, "encoder") is None
    assert find_query_map("", "an encoder that no packaged map is for") is None
