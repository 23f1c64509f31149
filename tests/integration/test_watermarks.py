"""`Recommend` with min_watermark where a service is missing: the error names the token and what it waits for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from citewell.client import Citewell, CitewellError, Options, Publication, Query
from citewell.commands.stack import Stack, choose_ports
from citewell.ingestion.tokens import encode_token
from citewell.scholarly.positions import LogPosition
from tests.tiny_models import write_tiny_encoder


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    encoder = {"CITEWELL_PROFILER__ENCODER": str(write_tiny_encoder(tmp_path / "encoder"))}
    stack = Stack(tmp_path, choose_ports(0), settings=encoder)
    yield stack
    stack.stop()


def refusal(citewell: Citewell, token: str) -> tuple[str, str]:
    with pytest.raises(CitewellError) as caught:
        citewell.recommend(Query(title="On parsing"), Options(min_watermark=(token,)))
    return caught.value.reason, caught.value.message


def test_what_is_missing_is_named(stack: Stack) -> None:
    stack.start(["ingestion", "recommender"])
    stack.wait(["ingestion", "recommender"])
    addresses = stack.addresses
    with Citewell(addresses["recommender"], ingestion=addresses["ingestion"], timeout=2) as citewell:
        token = citewell.publish(Publication("p", 1, "On parsing")).token
        named = f"options.min_watermark: the event of '{token[:79]}"
        reason, told = refusal(citewell, token)
        assert (reason, named in told) == ("WATERMARK_NOT_REACHED", True), told
        assert "ingestion and the profiler have yet to say how far it is" in told

        stack.start(["profiler"])
        stack.wait(["profiler"])
        while "ingestion and the profiler have yet" in told:  # ingestion applies it, within the pauses of its retries
            reason, told = refusal(citewell, token)
        assert (reason, named in told) == ("WATERMARK_NOT_REACHED", True), told
        assert "the profiler has yet to write it to the index" in told

        foreign = encode_token(LogPosition("other", 0, 0), "e")
        reason, told = refusal(citewell, foreign)
        assert (reason, f"options.min_watermark: the event of {foreign!r}" in told) == ("LOG_REPLACED", True), told
