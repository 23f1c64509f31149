import dataclasses
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citewell.runtime.errors import InvalidField
from citewell.scholarly.contexts import TARGET, CitationMarker, MaskedContext, Passage
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.papers import ExternalId, Paper, SearchFilter
from citewell.scholarly.publications import Event, InvalidPublication, Publication, Retraction, validate
from citewell.types import messages
from citewell.types.v1 import paper_pb2, publication_pb2

SENTENCE = "We follow [1] closely."
PUBLICATION = Publication(
    "p1",
    3,
    "A title",
    "An abstract.",
    ("A. Author", "B. Writer"),
    "venue",
    PartialDate(2024, 5, 6),
    (ExternalId("doi", "10.1/x"),),
    ("bare",),
    (Passage(SENTENCE, (CitationMarker(10, 3, ("cited",)),), "1 Introduction"),),
    (MaskedContext(f"Others use {TARGET} too.", "cited", 1),),
)


def test_bare_references_have_no_context_and_equal_contexts_count_once() -> None:
    twice = dataclasses.replace(PUBLICATION, masked_contexts=PUBLICATION.masked_contexts * 2)
    assert twice.contexts() == {"bare": (), "cited": (f"Others use {TARGET} too.", f"We follow {TARGET} closely.")}


@given(st.permutations(range(6)))
def test_the_order_of_references_and_contexts_does_not_make_other_content(order: list[int]) -> None:
    contexts = [MaskedContext(f"{TARGET} number {n}", f"c{n % 3}") for n in range(6)]
    base = dataclasses.replace(PUBLICATION, masked_contexts=tuple(contexts), reference_ids=("x", "y"))
    shuffled = dataclasses.replace(
        PUBLICATION, masked_contexts=tuple(contexts[n] for n in order), reference_ids=("y", "x")
    )
    assert base.content_hash() == shuffled.content_hash()


@pytest.mark.parametrize(
    "change",
    [
        {"title": "Another"},
        {"abstract": ""},
        {"published": PartialDate(2024, 5)},
        {"reference_ids": ()},
        {"masked_contexts": ()},
        {"venue": "w"},
        {"external_ids": ()},
        {"authors": ("B. Writer", "A. Author")},
    ],
)
def test_any_other_fact_is_other_content(change: dict[str, object]) -> None:
    assert dataclasses.replace(PUBLICATION, **change).content_hash() != PUBLICATION.content_hash()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"paper_id": ""}, "paper_id"),
        ({"paper_id": "é" * 129}, "paper_id"),
        ({"paper_id": "a\nb"}, "paper_id"),
        ({"revision": 0}, "revision"),
        ({"title": "  "}, "title"),
        ({"title": "x" * 2001}, "title"),
        ({"abstract": "x" * 50_001}, "abstract"),
        ({"external_ids": (ExternalId("doi", ""),)}, "external_ids[0].value"),
        ({"external_ids": (ExternalId("d" * 65, "x"),)}, "external_ids[0].scheme"),
        ({"external_ids": (ExternalId("doi", "é" * 257),)}, "external_ids[0].value"),
        ({"external_ids": (ExternalId("doi", "x"),) * 101}, "external_ids"),
        ({"authors": ("A",) * 20_001}, "authors"),
        ({"authors": ("A", "x" * 501)}, "authors[1]"),
        ({"authors": ("é" * 300,) * 2000}, "authors"),
        ({"venue": "x" * 1001}, "venue"),
        ({"reference_ids": ("ok", " x")}, "reference_ids[1]"),
        ({"masked_contexts": (MaskedContext("no marker", "c"),)}, "masked_contexts[0].text"),
        ({"masked_contexts": (MaskedContext(f"{TARGET} {TARGET}", "c"),)}, "masked_contexts[0].text"),
        ({"passages": (Passage("short", (CitationMarker(3, 9, ("c",)),)),)}, "passages[0].markers[0]"),
        ({"passages": (Passage("short", (CitationMarker(0, 2, ()),)),)}, "passages[0].markers[0].reference_ids"),
        (
            {"passages": (Passage("short", (CitationMarker(0, 2, ("c", " ")),)),)},
            "passages[0].markers[0].reference_ids[1]",
        ),
        ({"reference_ids": ("r",) * 10_001}, "reference_ids"),
        ({"masked_contexts": (MaskedContext(TARGET, "c"),) * 10_001}, "masked_contexts"),
        ({"masked_contexts": (MaskedContext(TARGET + "x" * 20_000, "c"),)}, "masked_contexts[0].text"),
        ({"passages": (Passage("", ()),) * 10_001}, "passages"),
        ({"passages": (Passage("", ()), Passage("x" * 20_001, ()))}, "passages[1].text"),
        ({"passages": (Passage("", (), "x" * 1001),)}, "passages[0].section"),
        ({"passages": (Passage("", (CitationMarker(0, 1, ("c",)),) * 2001),)}, "passages[0].markers"),
        ({"passages": (Passage("[1]", (CitationMarker(0, 3, ("c",) * 5000),)),) * 3}, "passages[1].markers"),
        (
            {"passages": (Passage("overlap", (CitationMarker(0, 3, ("c",)), CitationMarker(2, 2, ("d",)))),)},
            "passages[0].markers[1]",
        ),
    ],
)
def test_what_can_never_be_applied_is_named(change: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidPublication) as caught:
        validate(dataclasses.replace(PUBLICATION, **change))  # type: ignore[arg-type]
    assert caught.value.field == field


def test_an_overlong_reason_of_a_retraction_is_named() -> None:
    with pytest.raises(InvalidPublication) as caught:
        validate(Retraction("p1", 1, "x" * 2001))
    assert (caught.value.field, caught.value.value) == ("reason", "2001 characters")


def largest() -> Publication:
    """A publication at every limit that does not exclude another."""
    passage = Passage("[1] word" * 2000, tuple(CitationMarker(8 * n, 3, (f"c{n}",)) for n in range(2000)), "s" * 1000)
    return Publication(
        "p" * 256,
        1,
        "t" * 2000,
        "a" * 50_000,
        ("A. N. Author-Name",) * 20_000,
        "v" * 1000,
        external_ids=tuple(ExternalId("s" * 64, f"{n:0512}") for n in range(100)),
        reference_ids=tuple(f"r{n}" for n in range(10_000)),
        passages=(passage,) * 5,
    )


def test_the_largest_publication_is_validated_and_masked_in_seconds() -> None:
    publication = largest()
    start = time.process_time()
    validate(publication)
    assert len(publication.contexts()) == 12_000
    assert time.process_time() - start < 30  # takes 0.2 s; masking the text for each marker takes minutes


def test_valid_events_survive_the_wire() -> None:
    validate(PUBLICATION)
    validate(Retraction("p1", 4))
    for body in (PUBLICATION, Retraction("p1", 4, "withdrawn")):
        event = Event("e1", body)
        wire = messages.event_to_message(event).SerializeToString()
        assert messages.event_from_message(publication_pb2.PublicationEvent.FromString(wire)) == event


def test_an_event_without_a_body_and_an_impossible_date_are_named() -> None:
    with pytest.raises(InvalidField, match="body"):
        messages.event_from_message(publication_pb2.PublicationEvent(event_id="e"))
    with pytest.raises(InvalidField) as caught:
        messages.date_from_message(paper_pb2.PartialDate(year=2023, month=2, day=30), "query.published")
    assert caught.value.field == "query.published"
    assert caught.value.value == "2023-2-30"


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"year_from": 2020, "year_to": 2019}, "filter.year_from"),
        ({"year_from": -1}, "filter.year_from"),
        ({"year_from": 2020, "published_before": paper_pb2.PartialDate(year=2020)}, "filter.published_before"),
    ],
)
def test_filters_that_admit_nothing_are_refused(message: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        messages.filter_from_message(paper_pb2.SearchFilter(**message))  # type: ignore[arg-type]
    assert caught.value.field == field


def test_a_filter_survives_the_wire_and_decides() -> None:
    wanted = SearchFilter(PartialDate(2021), 2019, 2020, frozenset({"v"}), frozenset({"no"}))
    assert messages.filter_from_message(messages.filter_to_message(wanted)) == wanted
    paper = Paper("yes", venue="v", published=PartialDate(2020, 3))
    assert wanted.admits(paper)
    for change in ({"id": "no"}, {"venue": "w"}, {"published": PartialDate(2021)}, {"published": PartialDate()}):
        assert not wanted.admits(dataclasses.replace(paper, **change))  # type: ignore[arg-type]
