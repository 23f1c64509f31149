"""The ledger: applies events so that each takes effect exactly once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from citewell.profiler.ledger import progress, schema
from citewell.profiler.ledger.database import Conflict, Database, chunks
from citewell.profiler.ledger.encoding import Encoder, Encoders, SuppliedVector, encode, supplied_vectors
from citewell.profiler.ledger.facts import Text, TextKey
from citewell.profiler.ledger.filling import fall_behind
from citewell.profiler.ledger.grouping import Groups
from citewell.profiler.ledger.lifecycle import NewName, random_name
from citewell.profiler.ledger.rows import LedgerRows, NeedsAlone, write_batch
from citewell.profiler.ledger.rules import Batch, Result, SourcedEvent
from citewell.profiler.ledger.said_terms import add_to_said_terms, said_terms_of
from citewell.profiler.ledger.sums import (
    Model,
    VectorsMissing,
    add_to_year_sums,
    read_models,
    read_vectors,
    stored_keys,
    write_vectors,
    year_sums_of,
)
from citewell.profiler.ledger.text_terms import counted, read_lexicon, read_text_terms, terms_of, write_text_terms
from citewell.profiler.ledger.views import serving_view
from citewell.profiler.lexical import TextTerms
from citewell.profiler.profiles import Fixed
from citewell.runtime import deadlines, faults
from citewell.runtime.errors import FailedPrecondition, Unavailable
from citewell.runtime.telemetry import logger
from citewell.scholarly.outcomes import EventState, Outcome
from citewell.scholarly.positions import LogPosition
from citewell.scholarly.publications import InvalidPublication

# Attempts before a transaction fails because other processes hold its locks.
TRIES = 20
# Texts encoded between two checks of the deadline.
TEXTS_AT_ONCE = 256
# Events of several calls in one transaction. A single call may have more.
EVENTS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class IncomingEvent:
    """An event with the vectors that its publisher supplied."""

    sourced: SourcedEvent
    vectors: tuple[SuppliedVector, ...] = ()


Encoded = dict[str, dict[TextKey, Fixed]]
"""model → text → vector. Vectors are made before the transaction begins."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Events with everything that is computed before their transaction begins."""

    events: Sequence[SourcedEvent]
    encoded: Encoded
    terms: Mapping[TextKey, TextTerms]
    without: frozenset[str]
    """Models whose encoders cannot be loaded here."""
    alone: bool


class Ledger:
    """Applies events and answers what happened to them. Calls block. Threads and processes may share one database."""

    def __init__(self, database: Database, encoders: Encoders, new_name: NewName = random_name) -> None:
        self.database, self.encoders, self._new_name = database, encoders, new_name
        self._transactions = Groups(self._apply_together, lambda prepared: len(prepared.events), EVENTS_AT_ONCE)

    def apply(self, events: Sequence[IncomingEvent]) -> list[Result]:
        """Applies the events in order, in one transaction, and returns the result of each.

        The whole batch shares one transaction, so that it takes its locks, reads its rows and syncs the disk once.
        Calls that wait for one another's transactions share one too.
        """
        events = self._with_ids(events)
        encoded: Encoded = {}
        terms: dict[TextKey, TextTerms] = {}
        alone = False
        for _ in range(TRIES):
            deadlines.budget("apply")  # raises once the caller's deadline has passed
            rejected, without = self._read_new_texts(events, encoded, terms)
            faults.point("after-encode")
            good = [event.sourced for event in events if id(event) not in rejected]
            try:
                results = self._transactions.run(_Prepared(good, encoded, terms, without, alone))
            except NeedsAlone:
                alone = True
            except (Conflict, VectorsMissing) as error:
                last: Exception = error
            else:
                faults.point("after-ledger-commit")
                applied = iter(results)
                return [rejected[id(event)] if id(event) in rejected else next(applied) for event in events]
        raise Unavailable(f"the ledger's rows are busy: {last}", stage="ledger")

    def record_dead(self, results: Iterable[Result]) -> None:
        """Records events that can never be applied. Call this after their dead letters are delivered."""
        dead = [replace(result, outcome=Outcome.DEAD) for result in results]
        with self.database.writing() as connection:
            progress.record(self.database, connection, dead)

    def event_state(self, key: str | LogPosition) -> EventState:
        with self.database.reading() as connection:
            return progress.event_state(connection, key)

    def applied(self) -> list[LogPosition]:
        """For each partition, the offset below which every event is applied or dead."""
        with self.database.reading() as connection:
            return progress.applied(connection)

    def _with_ids(self, events: Sequence[IncomingEvent]) -> list[IncomingEvent]:
        """Gives every event an id, because marks name the event that made them. Events from a file share one id."""
        load = f"load-{self._new_name()}"

        def with_id(sourced: SourcedEvent) -> SourcedEvent:
            name = progress.event_name(sourced.event.event_id, sourced.position) or load
            return replace(sourced, event=replace(sourced.event, event_id=name))

        return [replace(event, sourced=with_id(event.sourced)) for event in events]

    def _read_new_texts(
        self, events: Sequence[IncomingEvent], encoded: Encoded, terms: dict[TextKey, TextTerms]
    ) -> tuple[dict[int, Result], frozenset[str]]:
        """Encodes new texts and counts their words, into `encoded` and `terms`.

        Returns the results of events with invalid vectors, and the models whose encoders cannot be loaded here.
        """
        with self.database.reading() as connection:
            models, serving = read_models(connection), serving_view(connection).model.hash
            states = LedgerRows(connection).papers(
                event.sourced.body.paper_id for event in events if not event.sourced.problem
            )
        rejected: dict[int, Result] = {}
        texts: dict[TextKey, Text] = {}
        encoders: dict[str, Encoder] = {}
        for model in models:
            try:
                encoders[model.hash] = self.encoders.of_model(model.name, model.hash)
            except FailedPrecondition as error:
                if model.hash == serving:
                    raise
                # Events must not wait for the encoder of a view that is not served.
                logger.warning("a view falls behind: its encoder cannot be loaded", model=model.name, why=error.message)
        for event in events:
            told = event.sourced
            state = states.get(told.body.paper_id)
            if told.problem or (state and told.body.revision <= state.body_revision):
                continue  # not a new revision: a replay encodes nothing, even for models added since
            try:
                for model_hash, encoder in encoders.items():
                    supplied = supplied_vectors(event.vectors, encoder, told.texts)
                    encoded.setdefault(model_hash, {}).update(supplied)
            except InvalidPublication as error:
                rejected[id(event)] = told.dead("INVALID_VECTORS", error)
                continue
            texts |= told.texts
        terms |= counted({key: text for key, text in texts.items() if key not in terms})
        for model_hash, encoder in encoders.items():
            vectors = encoded.setdefault(model_hash, {})
            with self.database.reading() as connection:
                known = stored_keys(connection, model_hash, texts) | vectors.keys()
            new = {key: text for key, text in texts.items() if key not in known}
            vectors |= self._encode(model_hash, encoder, new)
        return rejected, frozenset(model.hash for model in models) - encoders.keys()

    def _encode(self, model_hash: str, encoder: Encoder, texts: dict[TextKey, Text]) -> dict[TextKey, Fixed]:
        """The vectors of the texts.

        Many texts are encoded in pieces, and each piece is stored at once. If the caller's deadline passes in between,
        a repeated call continues with the next piece.
        """
        if len(texts) <= TEXTS_AT_ONCE:
            return encode(encoder, texts)
        vectors: dict[TextKey, Fixed] = {}
        for keys in chunks(list(texts), TEXTS_AT_ONCE):
            deadlines.budget("encode")
            made = encode(encoder, {key: texts[key] for key in keys})
            with self.database.writing() as connection:
                write_vectors(self.database, connection, model_hash, made)
            vectors |= made
        return vectors

    def _apply_together(self, group: Sequence[_Prepared]) -> list[list[Result]]:
        """The results of each caller's events, all applied in one transaction."""
        encoded: Encoded = {}
        for prepared in group:
            for model, vectors in prepared.encoded.items():
                encoded.setdefault(model, {}).update(vectors)
        together = _Prepared(
            [told for prepared in group for told in prepared.events],
            encoded,
            {key: terms for prepared in group for key, terms in prepared.terms.items()},
            frozenset().union(*(prepared.without for prepared in group)),
            any(prepared.alone for prepared in group),
        )
        with self.database.writing(alone=together.alone) as connection:
            results = iter(self._apply_in(connection, together))
        return [[next(results) for _ in prepared.events] for prepared in group]

    def _apply_in(self, connection: Connection, prepared: _Prepared) -> list[Result]:
        events, encoded, terms, alone = prepared.events, prepared.encoded, prepared.terms, prepared.alone
        models = read_models(connection)
        for model in models:
            write_vectors(self.database, connection, model.hash, encoded.get(model.hash, {}))
        locked = None if self.database.is_sqlite or alone else self._lock(connection, events)
        dead = progress.recorded_dead(connection, (told.event.event_id for told in events))
        batch = Batch(LedgerRows(connection, alone=alone, locked=locked), dead)
        batch.prefetch(events)
        results = [batch.apply(told) for told in events]
        accepted = [told for told in events if batch.bodies.get(told.body.paper_id) is told.body]
        new = {key: text for told in accepted for key, text in told.texts.items()}
        views = connection.scalars(sa.select(schema.views.c.name).where(schema.views.c.projected))
        write_batch(self.database, connection, batch, list(views))
        for model in models:
            try:
                self._add_to_sums(connection, model, batch, new.keys() - encoded.get(model.hash, {}).keys())
            except VectorsMissing:
                if model.hash not in prepared.without:
                    raise
                fall_behind(self.database, connection, model, batch.bodies, alone=alone)
        self._add_words(connection, batch, {key: terms.get(key) or terms_of(text) for key, text in new.items()})
        progress.record(self.database, connection, [result for result in results if result.outcome is not Outcome.DEAD])
        return results

    def _add_to_sums(self, connection: Connection, model: Model, batch: Batch, known: Set[TextKey]) -> None:
        """`known`: new texts that were not encoded for this transaction, because they had a vector."""
        net = {
            (cited, contribution): times
            for (cited, contribution), times in batch.net.items()
            if times and model.keeps_sums_of(cited)
        }
        needed = {key for _, contribution in net for key in (contribution.text, *contribution.contexts)}
        vectors = read_vectors(connection, model.hash, needed)
        # All new texts need vectors, even those in no sum yet: for the papers' own profiles, and for sums built later.
        if vectors.keys() < needed or stored_keys(connection, model.hash, known) < known:
            raise VectorsMissing(f"texts are not encoded by {model.name!r} yet")
        add_to_year_sums(self.database, connection, model.hash, year_sums_of(net, vectors, model.dimension))

    def _add_words(self, connection: Connection, batch: Batch, new: Mapping[TextKey, TextTerms]) -> None:
        write_text_terms(self.database, connection, new)
        lexicon = read_lexicon(connection)
        if lexicon is None:
            return
        net = {
            (cited, contribution): times
            for (cited, contribution), times in batch.net.items()
            if times and contribution.contexts and lexicon.keeps_words_said_of(cited)
        }
        needed = {key for _, contribution in net for key in contribution.contexts}
        terms = {**read_text_terms(connection, needed - new.keys()), **new}
        add_to_said_terms(self.database, connection, said_terms_of(net, terms))

    def _lock(self, connection: Connection, events: Sequence[SourcedEvent]) -> frozenset[str]:
        """Locks the rows of all papers that the events may change, and returns their ids.

        Rows are locked in the order of their ids, so that two processes cannot deadlock. Missing rows are inserted as
        stubs first, because only existing rows can be locked.
        """
        events = [told for told in events if not told.problem]
        ids = {told.body.paper_id for told in events}
        sources = {source for told in events for source in told.facts.contexts}
        names = ids.union(sources, *(told.facts.aliases for told in events))
        rows = LedgerRows(connection)
        claims = rows.claims(names)
        touched = ids.union(sources, *rows.edges(ids).values(), *claims.values())
        stubs = [{**_STUB, "id": paper_id} for paper_id in sorted(touched - claims.keys())]
        self.database.insert_missing(connection, schema.papers, stubs)
        table = schema.papers
        for some in chunks(sorted(touched)):
            connection.execute(sa.select(table.c.id).where(table.c.id.in_(some)).order_by(table.c.id).with_for_update())
        return frozenset(touched | names)


_STUB = {
    "revision": 0,
    "content_hash": "",
    "retracted": False,
    "version": 0,
    "body_revision": 0,
    "text_key": b"",
    "last_event": "",
}
