"""What must hold at every moment of a random history, and at its end."""

from __future__ import annotations

import shutil
from contextlib import suppress
from itertools import product

import numpy as np
from hypothesis.stateful import invariant

from citewell.profiler.doctor import check_profiles
from citewell.profiler.ledger import filling, progress
from citewell.profiler.ledger.facts import ContextText
from citewell.profiler.ledger.points import PaperPoint, span_key
from citewell.profiler.ledger.views import View, serving_view
from citewell.profiler.profiles import normalised
from citewell.runtime.errors import NotFound
from citewell.scholarly.outcomes import Outcome
from citewell.scholarly.positions import LogPosition
from citewell.scholarly.publications import Publication
from tests.faults.history_world import CITES, NAMES, PARTITIONS, TEXTS, HistoryWorld
from tests.ledger_world import (
    check_words,
    dump,
    shown_papers,
    shown_spans,
    stored_said,
    stored_sums,
)


class CheckedHistories(HistoryWorld):
    """Compares ledger and index with the reference model."""

    @invariant()
    def sums_are_the_models_bit_for_bit(self) -> None:
        for view in self.views():
            if view.model.state == "READY":
                assert stored_sums(self.database, view.model.hash) == self.model.sums(self.encoders[view.model.name])

    @invariant()
    def words_are_the_models_count_for_count(self) -> None:
        assert stored_said(self.database) == self.model.said()

    @invariant()
    def watermarks_are_true(self) -> None:
        with self.database.reading() as connection:
            applied, searchable = progress.applied(connection), progress.searchable(connection)
            for position in applied:
                prefix = 0
                while (position.partition, prefix) in self.recorded:
                    prefix += 1
                assert position.offset == prefix
            for position in searchable:
                for offset in range(position.offset):
                    state = progress.event_state(connection, LogPosition("log", position.partition, offset))
                    assert state.searchable or state.outcome is Outcome.DEAD

    @invariant()
    def searchable_events_are_in_the_index(self) -> None:
        """Compares with the points in the serving view of the index, not with another function of the ledger."""
        with self.database.reading() as connection:
            view = serving_view(connection).name
            states = progress.event_states(connection, [LogPosition("log", *place) for place in self.recorded])
        told = {
            LogPosition("log", *place): self.event(place).body
            for place in self.recorded
            if self.model.published().get(self.event(place).body.paper_id)
        }
        searchable = {key: body for key, body in told.items() if states[key].searchable}
        if searchable:
            points: list[PaperPoint] = []
            with suppress(NotFound):  # nothing was projected yet
                points, _ = self.run(
                    self.index.read_points(view, sorted({b.paper_id for b in searchable.values()}), [])
                )
            stored = {point.paper.id: point for point in points}
            for body in searchable.values():
                point = stored.get(body.paper_id)
                if isinstance(body, Publication):
                    # A paper that was retracted before it was published is not shown, so its point may be missing.
                    retracted = self.model.papers[body.paper_id].retracted
                    assert point.paper.revision >= body.revision if point else retracted
                elif point and not point.hidden:
                    assert point.paper.revision > body.revision

    def teardown(self) -> None:
        try:
            self.finish()
        finally:
            for ledger in self.ledgers:
                ledger.database.close()
            self.close_index()
            self.run(self.loop.shutdown_default_executor())
            self.loop.close()
            shutil.rmtree(self.folder)

    def finish(self) -> None:
        """Completes all work, then checks: no event is lost, the index equals the model, retired views can be dropped,
        and a replay changes nothing.
        """
        for partition in range(PARTITIONS):
            while self.next_places(partition, 1):
                self.deliver_next(0, partition, 7)
        while filling.fill_step(self.database, self.ledgers[0].encoders):
            pass
        self.project_all()
        self.check_statuses()
        for view in self.views():
            if view.projected:
                self.check_view(view)
            elif not view.serving:
                self.drop_from_index(view.name)
        report = self.run(check_profiles(self.database, self.index, 0, 0, repair=False))
        assert report.faults == []
        before = dump(self.database)
        for partition in range(PARTITIONS):
            self.apply(1, [(partition, offset) for offset in range(len(self.log[partition]))])
        assert dump(self.database) == before

    def project_all(self) -> None:
        async def until_done() -> None:
            for _ in range(3):  # fill the view, switch to it, tell the index
                for projector in self.projectors:
                    while await projector.step():
                        pass

        self.run(until_done())

    def check_statuses(self) -> None:
        with self.database.reading() as connection:
            assert serving_view(connection).projected
            for partition, events in enumerate(self.log):
                for offset, event in enumerate(events):
                    outcome = self.model.outcomes[event.event_id]
                    for key in (event.event_id, LogPosition("log", partition, offset)):
                        state = progress.event_state(connection, key)
                        assert (state.outcome, state.searchable) == (outcome, outcome != "DEAD")

    def check_view(self, view: View) -> None:
        encoder, published = self.encoders[view.model.name], self.model.published()
        keys = [span_key(citing, cited, ContextText(text).key) for citing, cited, text in product(NAMES, CITES, TEXTS)]
        stored_papers, stored_spans = self.run(self.index.read_points(view.name, [*NAMES, "stub"], keys))
        papers, spans = shown_papers(stored_papers), shown_spans(stored_spans)
        assert papers.keys() == {key for key in published if not self.model.papers[key].retracted}
        for key, point in papers.items():
            profile = self.model.profile(encoder, key, view.weights.alpha, view.weights.beta)
            np.testing.assert_allclose(normalised(point.profile), normalised(profile), atol=1e-5)
            content = encoder.vector(encoder.paper_text(published[key].title, published[key].abstract))
            np.testing.assert_allclose(normalised(point.content), normalised(content), atol=1e-6)
            check_words(self.model, point, view)
            told = published[key]
            assert (point.paper.in_degree, point.paper.revision) == (self.model.in_degree(key), told.revision)
            assert (point.paper.title, point.paper.abstract) == (told.title, told.abstract)
            assert (point.paper.published, point.paper.external_ids) == (told.published, told.external_ids)
        citations = self.model.citations()
        assert spans.keys() == {(*pair, text) for pair, texts in citations.items() for text in texts}
        for (citing, _, text), span in spans.items():
            assert (span.published, span.revision) == (published[citing].published, published[citing].revision)
            np.testing.assert_allclose(normalised(span.vector), normalised(encoder.vector(text)), atol=1e-6)
