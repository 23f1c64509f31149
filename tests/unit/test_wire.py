"""Requests that cannot be parsed are refused like any other wrong field."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citewell.ingestion.v1 import ingestion_pb2
from citewell.recommender.v1 import recommender_pb2
from citewell.runtime.errors import InvalidField
from citewell.runtime.wire import parser

GOOD = recommender_pb2.RecommendRequest(query=recommender_pb2.Query(context="see TARGETCIT", title="ü"))


def test_a_sound_request_is_parsed() -> None:
    assert parser(recommender_pb2.RecommendRequest.FromString)(GOOD.SerializeToString()) == GOOD


def test_broken_text_is_named_by_its_path() -> None:
    publish = ingestion_pb2.PublishRequest()
    publish.publication.paper_id = "p"
    publish.publication.reference_ids.extend(["a", "bXd"])
    publish.publication.passages.add().text = "sound"
    data = publish.SerializeToString().replace(b"bXd", b"b\xffd")
    with pytest.raises(InvalidField) as refused:
        parser(ingestion_pb2.PublishRequest.FromString)(data)
    assert refused.value.field == "publication.reference_ids[1]"
    assert str(refused.value) == r"publication.reference_ids[1] is 'b\\xffd'; expected text in UTF-8"
    assert refused.value.reason == "BROKEN_UTF8"


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x05a", b"\xff" * 12, b"\x0a\x02\x0a\x09"])
def test_what_is_no_message_at_all_is_refused_as_such(data: bytes) -> None:
    with pytest.raises(InvalidField) as refused:
        parser(recommender_pb2.RecommendRequest.FromString)(data)
    assert (refused.value.field, refused.value.reason) == ("request", "MALFORMED_MESSAGE")


@given(st.binary(max_size=60), st.integers(0, 40))
def test_no_bytes_break_the_parser(noise: bytes, at: int) -> None:
    data = GOOD.SerializeToString()
    with contextlib.suppress(InvalidField):
        result = parser(recommender_pb2.RecommendRequest.FromString)(data[:at] + noise + data[at:])
        assert isinstance(result, recommender_pb2.RecommendRequest)
