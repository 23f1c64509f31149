"""LedgerService: translates messages to and from the ledger's types."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

from citewell.profiler.doctor import check_profiles
from citewell.profiler.index_views import IndexViews, IndexWriter
from citewell.profiler.ledger.encoding import SuppliedVector
from citewell.profiler.ledger.ledger import IncomingEvent, Ledger
from citewell.profiler.ledger.lifecycle import (
    DEFAULT_FORM,
    MAX_VIEWS,
    adopt_restored,
    forget_view,
    left_to_do,
    retire_view,
    start_rebuild,
    try_switch,
)
from citewell.profiler.ledger.rules import Result, SourcedEvent
from citewell.profiler.ledger.views import PointForm, View, read_views, view_called
from citewell.profiler.pools import Pool
from citewell.profiler.profiles import MAX_WEIGHT, ProfileWeights
from citewell.profiler.v1 import ledger_pb2, ledger_pb2_grpc
from citewell.profiler.watermarks import Watermarks
from citewell.runtime import deadlines, telemetry
from citewell.runtime.errors import FailedPrecondition, InvalidField, NotFound
from citewell.scholarly.outcomes import EventState, Outcome
from citewell.scholarly.positions import LogPosition
from citewell.types.messages import event_from_message, position_from_message, position_to_message
from citewell.types.outcome_messages import outcome_to_message
from citewell.types.v1 import publication_pb2

# Stop waiting this long before the caller's deadline, so that the answer still arrives in time.
HOME_SECONDS = 0.05
LONGEST_WAIT_SECONDS = 3600.0
# A rebuild may take hours, but a connection is closed after minutes. Callers that wait for a view call again.
LONGEST_SWITCH_SECONDS = 60.0
# Largest page of CheckProfiles, in papers.
MOST_CHECKED = 10_000

_events = telemetry.meter.create_counter("citewell_ledger_events", description="Events judged, by outcome")


class LedgerHandlers(ledger_pb2_grpc.LedgerServiceServicer):
    """Handlers. `changed` is called when there are new marks to project."""

    def __init__(
        self,
        ledger: Ledger,
        index: IndexWriter,
        watermarks: Watermarks,
        changed: Callable[[], None],
        pool: Pool,
        *,
        form: PointForm = DEFAULT_FORM,
        max_views: int = MAX_VIEWS,
    ) -> None:
        """`pool` runs the transactions that apply events."""
        self._ledger, self._index, self._watermarks, self._changed = ledger, index, watermarks, changed
        self._form, self._max_views, self._pool = form, max_views, pool
        self._database = ledger.database

    async def ApplyPublications(
        self, request: ledger_pb2.ApplyPublicationsRequest, context: Any
    ) -> ledger_pb2.ApplyPublicationsResponse:
        results = await self._apply(
            [(message.event, message.position if message.HasField("position") else None) for message in request.events]
        )
        return ledger_pb2.ApplyPublicationsResponse(results=[_result_message(result) for result in results])

    async def LoadPublications(
        self, request_iterator: AsyncIterator[ledger_pb2.LoadPublicationsRequest], context: Any
    ) -> ledger_pb2.LoadPublicationsResponse:
        total = ledger_pb2.LoadPublicationsResponse()
        async for request in request_iterator:
            for result in await self._apply([(event, None) for event in request.events]):
                match result.outcome:
                    case Outcome.APPLIED:
                        total.applied += 1
                    case Outcome.DUPLICATE:
                        total.duplicates += 1
                    case Outcome.SUPERSEDED:
                        total.superseded += 1
                    case Outcome.DEAD:
                        total.rejected.append(_result_message(result))
        return total

    async def GetEventState(
        self, request: ledger_pb2.GetEventStateRequest, context: Any
    ) -> ledger_pb2.GetEventStateResponse:
        self._require_ledger()
        key: str | LogPosition = request.event_id
        if request.WhichOneof("key") == "position":
            key = position_from_message(request.position)
        elif not (key and request.event_id.isprintable()):  # events with other ids are known by their position
            raise InvalidField("key", request.event_id, "a printable event id or a position")
        seconds = min(deadlines.budget("wait for the event") - HOME_SECONDS, LONGEST_WAIT_SECONDS)
        if request.wait:
            return _state_message(await self._watermarks.event(key, seconds))
        return _state_message(await asyncio.to_thread(self._ledger.event_state, key))

    async def RecordDeadEvents(
        self, request: ledger_pb2.RecordDeadEventsRequest, context: Any
    ) -> ledger_pb2.RecordDeadEventsResponse:
        self._require_ledger()
        results = [
            Result(
                Outcome.DEAD,
                event.event_id,
                position_from_message(event.position) if event.HasField("position") else None,
                event.reason,
                event.message,
            )
            for event in request.events
        ]
        await asyncio.to_thread(self._ledger.record_dead, results)
        self._watermarks.changed()
        return ledger_pb2.RecordDeadEventsResponse()

    async def StartRebuild(
        self, request: ledger_pb2.StartRebuildRequest, context: Any
    ) -> ledger_pb2.StartRebuildResponse:
        spec, serving = request.spec, self._watermarks.view
        weights = ProfileWeights(
            _weight(spec, "alpha", serving.weights.alpha), _weight(spec, "beta", serving.weights.beta)
        )
        encoder = await asyncio.to_thread(self._ledger.encoders.named, spec.encoder or serving.model.name)
        view = await asyncio.to_thread(
            start_rebuild,
            self._database,
            encoder,
            weights,
            request.request_id,
            form=self._form,
            max_views=self._max_views,
        )
        self._changed()
        return ledger_pb2.StartRebuildResponse(view=await self._view_message(view))

    async def GetRebuild(self, request: ledger_pb2.GetRebuildRequest, context: Any) -> ledger_pb2.GetRebuildResponse:
        self._require_ledger()
        view = view_called(await asyncio.to_thread(self._views), request.view)
        return ledger_pb2.GetRebuildResponse(view=await self._view_message(view))

    async def SwitchView(self, request: ledger_pb2.SwitchViewRequest, context: Any) -> ledger_pb2.SwitchViewResponse:
        self._require_ledger()
        await self._require_held(request.view)
        switched = await self._watermarks.until(
            lambda: try_switch(self._database, request.view),
            lambda switched: switched is not None,
            min(deadlines.budget("wait for the view") - HOME_SECONDS, LONGEST_SWITCH_SECONDS),
        )
        if switched is None:
            raise FailedPrecondition(
                f"view {request.view!r} is not complete yet; GetRebuild says what is left",
                reason="VIEW_INCOMPLETE",
            )
        view, previous = switched
        await self._index.serve_view(view.name)
        await self._watermarks.look()
        return ledger_pb2.SwitchViewResponse(view=await self._view_message(view), previous_view=previous)

    async def _require_held(self, name: str) -> None:
        """Raises FailedPrecondition if the index lost papers of this view. The view is filled again then."""
        view = next((view for view in await asyncio.to_thread(self._views) if view.name == name), None)
        views = IndexViews(self._database, self._index, self._changed)
        if view is not None and view.can_be_filled and not await views.is_held(view):
            raise FailedPrecondition(
                f"the index lost papers of view {name!r}, which is filled again; GetRebuild says what is left",
                reason="VIEW_INCOMPLETE",
            )

    async def DropView(self, request: ledger_pb2.DropViewRequest, context: Any) -> ledger_pb2.DropViewResponse:
        self._require_ledger()
        await asyncio.to_thread(retire_view, self._database, request.view)
        # The index drops the view first: if that fails, the ledger still lists the view and DropView can be repeated.
        with suppress(NotFound):
            await self._index.drop_view(request.view)
        await asyncio.to_thread(forget_view, self._database, request.view)
        return ledger_pb2.DropViewResponse()

    async def ListViews(self, request: ledger_pb2.ListViewsRequest, context: Any) -> ledger_pb2.ListViewsResponse:
        self._require_ledger()
        if request.page_token:
            raise InvalidField("page_token", request.page_token, "none: all views fit on one page")
        views = await asyncio.to_thread(self._views)
        return ledger_pb2.ListViewsResponse(views=[await self._view_message(view) for view in views])

    async def CheckProfiles(
        self, request: ledger_pb2.CheckProfilesRequest, context: Any
    ) -> ledger_pb2.CheckProfilesResponse:
        self._require_ledger()
        if request.sample < 0:
            raise InvalidField("sample", request.sample, "how many papers, or 0 for all")
        if not 0 <= request.page_size <= MOST_CHECKED:
            raise InvalidField("page_size", request.page_size, f"0 to {MOST_CHECKED}")
        report = await check_profiles(
            self._database,
            self._index,
            request.sample,
            request.seed,
            request.repair,
            _paper_of_token(request.page_token),
            request.page_size,
        )
        self._changed()
        return ledger_pb2.CheckProfilesResponse(
            checked=report.checked,
            faults=[
                ledger_pb2.ProfileFault(paper_id=fault.paper_id, kind=fault.kind, detail=fault.detail)
                for fault in report.faults
            ],
            repaired=report.repaired,
            next_page_token=base64.urlsafe_b64encode(report.last.encode()).decode(),
            total=report.total,
        )

    async def AdoptRestoredLedger(
        self, request: ledger_pb2.AdoptRestoredLedgerRequest, context: Any
    ) -> ledger_pb2.AdoptRestoredLedgerResponse:
        self._require_ledger()
        epoch = await asyncio.to_thread(adopt_restored, self._database, request.request_id)
        self._changed()
        applied = await asyncio.to_thread(self._ledger.applied)
        return ledger_pb2.AdoptRestoredLedgerResponse(
            epoch=epoch, applied=[position_to_message(position) for position in applied]
        )

    def _views(self) -> list[View]:
        with self._database.reading() as connection:
            return read_views(connection)

    async def _view_message(self, view: View) -> ledger_pb2.View:
        def read() -> tuple[int, int]:
            with self._database.reading() as connection:
                return left_to_do(connection, view)

        marks, encode_marks = await asyncio.to_thread(read)
        return ledger_pb2.View(
            name=view.name,
            model_hash=view.model.hash,
            alpha=view.weights.alpha,
            beta=view.weights.beta,
            serving=view.serving,
            marks=marks,
            encode_marks=encode_marks,
            epoch=view.epoch,
        )

    async def _apply(
        self, messages: Sequence[tuple[publication_pb2.PublicationEvent, publication_pb2.LogPosition | None]]
    ) -> list[Result]:
        self._require_ledger()
        results = await self._pool.run(self._translate_and_apply, messages)
        for outcome, count in Counter(result.outcome for result in results).items():
            _events.add(count, {"outcome": outcome.value})
        self._changed()
        return results

    def _require_ledger(self) -> None:
        """Raises Unavailable until this process has opened the ledger."""
        _ = self._watermarks.view

    def _translate_and_apply(
        self, messages: Sequence[tuple[publication_pb2.PublicationEvent, publication_pb2.LogPosition | None]]
    ) -> list[Result]:
        """Runs in a thread, because translating a large batch takes long too.

        An event that cannot be translated is DEAD, as an invalid one is.
        """
        results: list[Result | None] = []
        events: list[IncomingEvent] = []
        for message, place in messages:
            position = position_from_message(place) if place is not None else None
            try:
                event = event_from_message(message)
            except InvalidField as error:
                results.append(
                    Result(
                        Outcome.DEAD,
                        message.event_id,
                        position,
                        error.reason,
                        error.message,
                    )
                )
                continue
            vectors = tuple(
                SuppliedVector(vector.text_hash, vector.model_hash, vector.values)
                for vector in message.publication.vectors
            )
            results.append(None)
            events.append(IncomingEvent(SourcedEvent(event, position), vectors))
        applied = iter(self._ledger.apply(events) if events else ())
        return [result or next(applied) for result in results]


def _paper_of_token(token: str) -> str:
    """The last paper of the previous page, read from the page token."""
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except ValueError:
        raise InvalidField("page_token", token, "next_page_token of the answer before") from None


def _weight(spec: ledger_pb2.ViewSpec, name: str, otherwise: float) -> float:
    value = float(getattr(spec, name)) if spec.HasField(name) else otherwise  # type: ignore[arg-type]
    if not 0 <= value <= MAX_WEIGHT:
        raise InvalidField(f"spec.{name}", value, f"a number from 0 to {MAX_WEIGHT:,.0f}")
    return value


def _result_message(result: Result) -> ledger_pb2.EventResult:
    return ledger_pb2.EventResult(
        position=position_to_message(result.position) if result.position else None,
        event_id=result.event_id,
        outcome=outcome_to_message(result.outcome),
        reason=result.reason,
        message=result.message,
    )


def _state_message(state: EventState) -> ledger_pb2.GetEventStateResponse:
    return ledger_pb2.GetEventStateResponse(
        outcome=outcome_to_message(state.outcome),
        searchable=state.searchable,
        reason=state.reason,
        message=state.message,
    )
