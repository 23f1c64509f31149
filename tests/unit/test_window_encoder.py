"""The window encoder: a vector of the words around the marker, and which ENC1 it belongs to."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from citewell.profiler.encoder import load_encoder
from citewell.profiler.encoder_files import DEFAULT_ENCODER, EncoderUnusable
from citewell.profiler.window_encoder import DESCRIPTION, OFF, PACKAGED, TOKENS, load_window_encoder
from tests.tiny_models import write_tiny_encoder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    written = write_tiny_encoder(tmp_path / "window")
    (written / DESCRIPTION).write_text(json.dumps({"made for": "enc1", "tokens": 8}))
    return written


def test_only_the_words_around_the_marker_count(folder: Path) -> None:
    window = load_window_encoder(str(folder), "enc1")
    assert window is not None
    around = "nets nets nets nets TARGETCIT nets nets nets nets"
    far = [window.encode(f"{word * 40}{around}{word * 40}") for word in (" graphs ", " forests ")]
    assert np.array_equal(far[0], far[1])
    assert not np.allclose(far[0], window.encode(around.replace("TARGETCIT nets", "TARGETCIT graphs")))
    vectors = [window.encode(around)]
    assert np.isclose(np.linalg.norm(vectors[0]), 1.0, atol=1e-5)


def test_the_packaged_one_belongs_to_the_packaged_encoder_alone() -> None:
    enc1 = load_encoder(DEFAULT_ENCODER)
    window = load_window_encoder(PACKAGED, enc1.model_hash)
    assert window is not None
    assert window.encoder.max_tokens == TOKENS
    assert window.encoder.dimension == enc1.dimension
    assert load_window_encoder(PACKAGED, "another") is None
    assert load_window_encoder(OFF, enc1.model_hash) is None
    # It started from ENC1 and stayed near it: profiles of ENC1 are what it is compared with.
    text = "Residual networks TARGETCIT ease the training of deep models."
    assert float(window.encode(text) @ enc1.encode([text])[0]) > 0.2


def test_a_folder_for_another_encoder_is_refused(folder: Path) -> None:
    with pytest.raises(EncoderUnusable, match="trained beside the encoder enc1, not beside other"):
        load_window_encoder(str(folder), "other")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must hold"),
        ("[]", "must hold"),
        ('{"made for": "enc1"}', "tokens"),
        ('{"made for": "enc1", "tokens": "many"}', "must hold"),
    ],
)
def test_a_broken_description_says_what_is_wrong(folder: Path, text: str, message: str) -> None:
    (folder / DESCRIPTION).write_text(text)
    with pytest.raises(EncoderUnusable, match=message):
        load_window_encoder(str(folder), "enc1")


def test_a_folder_without_a_description_is_none(tmp_path: Path) -> None:
    with pytest.raises(EncoderUnusable, match=f"has no {DESCRIPTION}"):
        load_window_encoder(str(write_tiny_encoder(tmp_path / "plain")), "enc1")
