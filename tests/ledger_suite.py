"""The fixture of the ledger's contract tests: a ledger with encoder, index and projector, and a reference model."""

from __future__ import annotations

import asyncio

import numpy as np

from citewell.profiler.ledger.database import Database
from citewell.profiler.ledger.encoding import Encoders
from citewell.profiler.ledger.ledger import IncomingEvent, Ledger
from citewell.profiler.ledger.lifecycle import (
    open_ledger,
)
from citewell.profiler.ledger.rules import SourcedEvent
from citewell.profiler.ledger.views import serving_view
from citewell.profiler.profiles import ProfileWeights
from citewell.profiler.projector import Projector
from citewell.scholarly.contexts import MaskedContext
from citewell.scholarly.dates import PartialDate
from citewell.scholarly.lexical import Terms
from citewell.scholarly.outcomes import Outcome
from citewell.scholarly.papers import ExternalId
from citewell.scholarly.positions import LogPosition
from citewell.scholarly.publications import Event, Publication, Retraction
from citewell.scholarly.words import count_terms
from tests.ledger_world import (
    HashEncoder,
    LedgerModel,
    MemoryIndex,
    Sums,
    check_words,
    shown_papers,
    shown_spans,
    stored_said,
    stored_sums,
)

WEIGHTS = ProfileWeights(0.8, 0.2)


class World:
    """A ledger with its encoder, index and projector, and the reference model that it is compared with."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.encoders = {name: HashEncoder(name) for name in ("hash", "other")}
        self.encoder = self.encoders["hash"]
        self.index = MemoryIndex()
        self.model = LedgerModel()
        self.offset = 0
        self.database, self.ledger = self.another_process()
        open_ledger(self.database, self.encoder, WEIGHTS)
        self.restart_projector()

    def restart_projector(self) -> None:
        """Restarts the projector. What it cached about the index is lost."""
        self.projector = Projector(self.database, self.ledger.encoders, self.index, lambda: None)

    def another_process(self) -> tuple[Database, Ledger]:
        database = Database(self.url)
        return database, Ledger(database, Encoders(self.encoders.__getitem__))

    def publish(self, *bodies: Publication | Retraction) -> list[Outcome]:
        """Applies the events as one batch of partition 0, and checks each outcome against the model."""
        incoming = []
        for body in bodies:
            event = Event(f"event-{self.offset}", body)
            incoming.append(IncomingEvent(SourcedEvent(event, LogPosition("log", 0, self.offset))))
            self.offset += 1
        results = self.ledger.apply(incoming)
        expected = [self.model.deliver(event.sourced.event) for event in incoming]
        assert [result.outcome.value for result in results] == expected
        return [result.outcome for result in results]

    def project(self) -> None:
        async def all_of_it() -> None:
            while await self.projector.step():
                pass

        asyncio.run(all_of_it())

    def sums(self, encoder: HashEncoder | None = None) -> Sums:
        return stored_sums(self.database, (encoder or self.encoder).model_hash)

    def check(self) -> None:
        """Compares sums and counts with the model bit for bit. Then projects, and compares the points in the index."""
        assert self.sums() == self.model.sums(self.encoder)
        assert stored_said(self.database) == self.model.said()
        self.project()
        with self.database.reading() as connection:
            view = serving_view(connection)
        papers = shown_papers(self.index.papers[view.name].values())
        shown = {key for key in self.model.published() if not self.model.papers[key].retracted}
        assert papers.keys() == shown
        encoder = self.encoders[view.model.name]
        for key, point in papers.items():
            assert point.paper.in_degree == self.model.in_degree(key)
            expected = self.model.profile(encoder, key, view.weights.alpha, view.weights.beta)
            np.testing.assert_allclose(point.profile, expected, atol=1e-5)
            check_words(self.model, point, view)
        said = {(citing, cited, text) for (citing, cited), texts in self.model.citations().items() for text in texts}
        spans = shown_spans(self.index.spans[view.name].values())
        assert spans.keys() == said
        for (_, _, text), span in spans.items():
            assert span.terms == Terms.of(count_terms(text))
            assert span.span_terms == Terms.of(count_terms(span.span.of(text)))
            assert span.span.length > 0


def paper(
    paper_id: str,
    *cites: str,
    revision: int = 1,
    published: str = "2020-06-15",
    says: str = "",
    abstract: str = "",
    also: str = "",
) -> Publication:
    """A paper that cites each of these papers once, each in its own context."""
    return Publication(
        paper_id,
        revision,
        f"On {paper_id}",
        abstract=abstract,
        published=PartialDate.parse(published),
        external_ids=tuple(ExternalId(*name.split(":", 1)) for name in also.split()),
        masked_contexts=tuple(MaskedContext(f"{paper_id}{says} builds on TARGETCIT", cited) for cited in cites),
    )
