"""What the profiler has learned: query map, window encoder and term weights change answers, and answers say so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from citewell.profiler.encoder import load_encoder
from citewell.profiler.query_map import write_query_map
from citewell.profiler.v1 import profile_query_pb2
from citewell.runtime.settings import UnknownSetting
from tests.profiler_world import call, query, running
from tests.tiny_models import CONFIG, write_tiny_encoder

FIELDS = ("context", "title")
"""The parts of the queries here."""


async def test_a_query_map_changes_the_vector_of_hybrid_alone(folder: Path, encoder: Path) -> None:
    asked = query(context="in TARGETCIT", title="a net")
    async with running(folder, encoder) as profiler:
        plain = await call(profiler.queries.EmbedQuery, asked)
        info = await call(profiler.queries.Info, profile_query_pb2.InfoRequest())
        parts = [await call(profiler.queries.EmbedQuery, query(**{field: getattr(asked, field)})) for field in FIELDS]
    assert not plain.hybrid_vector
    assert (plain.query_map, info.query_map) == ("", "")

    size = info.encoder.dimension
    maps = np.random.default_rng(3).normal(size=(2, size, size))
    written = write_query_map(folder / "map.npz", *maps, info.encoder.hash)
    (mapping := folder / "mapping").mkdir()  # the first index may still be closing its own
    async with running(mapping, encoder, query_map=str(folder / "map.npz")) as profiler:
        mapped = await call(profiler.queries.EmbedQuery, asked)
        assert (await call(profiler.queries.Info, profile_query_pb2.InfoRequest())).query_map == written.digest
    assert mapped.query_vector == plain.query_vector
    assert mapped.query_map == written.digest
    assert mapped.settings_hash != plain.settings_hash
    context, content = (np.array(part.query_vector) for part in parts)
    np.testing.assert_allclose(mapped.hybrid_vector, written.vector(context, content), atol=1e-4)


async def test_a_query_map_for_another_encoder_is_refused(folder: Path, encoder: Path) -> None:
    write_query_map(folder / "map.npz", np.eye(4), np.eye(4), "another")
    with pytest.raises(UnknownSetting, match="made for the encoder another"):
        async with running(folder, encoder, query_map=str(folder / "map.npz")):
            pass


async def test_a_window_encoder_gives_the_second_phase_a_vector(folder: Path, encoder: Path) -> None:
    asked = query(context="Nets in TARGETCIT grow.", title="a net")
    (first := folder / "first").mkdir()
    async with running(first, encoder) as profiler:
        plain = await call(profiler.queries.EmbedQuery, asked)
        info = await call(profiler.queries.Info, profile_query_pb2.InfoRequest())
    assert (plain.window_encoder, info.window_encoder) == ("", ""), "the packaged one is for another encoder"
    assert not plain.second_phase.window_vector

    window = write_tiny_encoder(folder / "window", max_tokens=16)
    (window / "window.json").write_text(json.dumps({"made for": info.encoder.hash, "tokens": 8}))
    (second := folder / "second").mkdir()
    async with running(second, encoder, window_encoder=str(window)) as profiler:
        answer = await call(profiler.queries.EmbedQuery, asked)
        told = await call(profiler.queries.Info, profile_query_pb2.InfoRequest())
    assert answer.window_encoder == told.window_encoder != ""
    expected = load_encoder(str(window), max_tokens=8).encode([asked.context])[0]
    np.testing.assert_allclose(answer.second_phase.window_vector, expected, atol=0.02)  # bf16 is not exact
    assert answer.settings_hash != plain.settings_hash
    assert answer.query_vector == plain.query_vector

    (window / "window.json").write_text(json.dumps({"made for": "another", "tokens": 8}))
    (third := folder / "third").mkdir()  # the second index may still be closing its own
    with pytest.raises(UnknownSetting, match="trained beside the encoder another"):
        async with running(third, encoder, window_encoder=str(window)):
            pass


async def test_a_window_encoder_of_another_dimension_is_refused(folder: Path, encoder: Path) -> None:
    window = write_tiny_encoder(folder / "window", config={**CONFIG, "hidden_size": 8, "intermediate_size": 16})
    (window / "window.json").write_text(json.dumps({"made for": load_encoder(str(encoder)).model_hash, "tokens": 8}))
    with pytest.raises(UnknownSetting, match="its vectors have 8 numbers, those of the profiles 16"):
        async with running(folder, encoder, window_encoder=str(window)):
            pass


async def test_term_weights_change_the_words_of_a_query_and_say_so(folder: Path, encoder: Path) -> None:
    asked = query(context="Forests are old. Nets in TARGETCIT grow.", title="a net")
    answers = {}
    for setting in ("packaged", "none"):
        (own := folder / setting).mkdir()
        async with running(own, encoder, term_weights=setting) as profiler:
            answers[setting] = await call(profiler.queries.EmbedQuery, asked)
            info = await call(profiler.queries.Info, profile_query_pb2.InfoRequest())
            assert info.term_weights == answers[setting].term_weights
    learned, plain = answers["packaged"], answers["none"]
    assert learned.lexical.terms.ids == plain.lexical.terms.ids
    assert learned.lexical.terms.values != plain.lexical.terms.values
    assert (len(learned.term_weights), plain.term_weights) == (16, "")
    assert learned.settings_hash != plain.settings_hash
    assert learned.query_vector == plain.query_vector
