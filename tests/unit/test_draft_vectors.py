"""A draft's vector is kept, and keeping it changes no answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from citewell.inference.sessions import Inputs, Session
from citewell.profiler.draft_vectors import DraftVectors
from citewell.profiler.encoder import GraphEncoder, load_encoder
from tests.tiny_models import write_tiny_encoder

DRAFT = "a small net. " * 5
CONTEXT = "one two TARGETCIT three"


class Counted:
    """A session that counts the texts it encodes."""

    def __init__(self, session: Session) -> None:
        self._session, self.inputs, self.outputs = session, session.inputs, session.outputs
        self.streams = session.streams
        self.texts = 0

    def run(self, inputs: Inputs) -> list[NDArray[np.float32]]:
        self.texts += len(inputs["input_ids"])
        return self._session.run(inputs)


@pytest.fixture
def encoder(tmp_path: Path) -> GraphEncoder:
    """In bf16 where the machine has it, as in production: there a vector's last bits depend on its batch."""
    folder = write_tiny_encoder(tmp_path / "tiny")
    return load_encoder(str(folder), threads=1, cache=tmp_path / "cache")


def test_a_draft_is_encoded_once_and_its_vector_stays_the_same(encoder: GraphEncoder) -> None:
    session = encoder._session = Counted(encoder._session)
    drafts = DraftVectors()
    first = drafts.encode(encoder, CONTEXT, DRAFT)
    assert session.texts == 2
    again = drafts.encode(encoder, CONTEXT, DRAFT)
    assert session.texts == 3
    for ours, theirs in zip(first, again, strict=True):
        assert ours is not None
        assert theirs is not None
        assert ours.tobytes() == theirs.tobytes()
    assert not np.allclose(first[0], first[1])  # type: ignore[arg-type]


def test_what_is_missing_has_no_vector(encoder: GraphEncoder) -> None:
    drafts = DraftVectors()
    assert drafts.encode(encoder, "", "") == (None, None)
    of_context, of_draft = drafts.encode(encoder, "", DRAFT)
    assert of_context is None
    assert of_draft is not None
    of_context, of_draft = drafts.encode(encoder, CONTEXT, "")
    assert of_context is not None
    assert of_draft is None


def test_the_draft_asked_for_least_recently_is_dropped(encoder: GraphEncoder) -> None:
    session = encoder._session = Counted(encoder._session)
    drafts = DraftVectors(2)
    for draft in ("one", "two", "one", "three", "one", "two"):
        drafts.encode(encoder, "", draft)
    assert session.texts == 4  # "two" again


def test_drafts_of_two_models_are_kept_apart(encoder: GraphEncoder, tmp_path: Path) -> None:
    other = load_encoder(encoder.model_id, threads=1, cache=tmp_path / "cache", max_tokens=8)
    drafts = DraftVectors()
    _, ours = drafts.encode(encoder, "", DRAFT)
    _, theirs = drafts.encode(other, "", DRAFT)
    assert not np.allclose(ours, theirs)  # type: ignore[arg-type]
