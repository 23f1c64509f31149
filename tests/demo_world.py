"""The demo world divided for tests: what is told to the services, and held-out contexts to ask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from citewell.demo.corpus import generate, split_of
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.scholarly.contexts import mask
from citewell.scholarly.publications import Publication


@dataclass(frozen=True, slots=True)
class Asked:
    """A held-out context and the papers that are right there."""

    query: messages.Query
    published_before: str
    answers: frozenset[str]


def divided(papers: int, seed: int) -> Iterator[tuple[Publication, list[Asked]]]:
    """Every publication; the newest without their citations, which are asked for instead."""
    for number, publication in enumerate(generate(papers, seed)):
        if split_of(number, papers) == "test":
            yield replace(publication, reference_ids=(), passages=()), list(_asked(publication))
        else:
            yield publication, []


def _asked(publication: Publication) -> Iterator[Asked]:
    answers: dict[str, set[str]] = {}
    for passage in publication.passages:
        for context in mask(passage):
            answers.setdefault(context.text, set()).add(context.cited_id)
    for text, cited in answers.items():
        query = messages.Query(context=text, title=publication.title, abstract=publication.abstract)
        yield Asked(query, str(publication.published), frozenset(cited))
