"""Delivers a range of the log to the ledger again, in pages."""

from __future__ import annotations

import base64
import json
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from citewell.ingestion.logs.event_log import EventLog, PartitionState
from citewell.ingestion.v1 import ingestion_pb2
from citewell.ingestion.worker import Worker
from citewell.runtime.deadlines import in_time
from citewell.runtime.errors import FailedPrecondition, InvalidField
from citewell.scholarly.outcomes import Outcome

BATCH = 256
LARGEST_PAGE = 10_000
_VERSION = "1"


@dataclass(frozen=True, slots=True)
class Part:
    """What is left of a partition's part of the range: first ≤ offset < end."""

    partition: int
    first: int
    end: int


async def replay(
    log: EventLog, worker: Worker, group: str, request: ingestion_pb2.ReplayRequest
) -> ingestion_pb2.ReplayResponse:
    """Delivers a page, or all that is left if no page size is given. The next page's token says what is left."""
    if not 0 <= request.page_size <= LARGEST_PAGE:
        raise InvalidField("page_size", request.page_size, f"0 (no pages) to {LARGEST_PAGE}")
    states = await in_time(log.partitions(group), "partitions")
    if request.page_token:
        parts = _parse_token(request.page_token, log.log_id, states)
    else:
        parts = await _parts(log, states, request)
    left = request.page_size or sum(part.end - part.first for part in parts)
    counted = Counter[Outcome]()
    while parts and left > 0:
        part = parts[0]
        records = await in_time(log.read(part.partition, part.first, part.end, min(left, BATCH)), "read")
        if records:
            counted.update(await in_time(worker.deliver(records), "apply"))
            left -= len(records)
            part = replace(part, first=records[-1].position.offset + 1)
        parts = [part, *parts[1:]] if records and part.first < part.end else parts[1:]
    return ingestion_pb2.ReplayResponse(
        delivered=counted.total(),
        applied=counted[Outcome.APPLIED],
        duplicates=counted[Outcome.DUPLICATE],
        superseded=counted[Outcome.SUPERSEDED],
        dead=counted[Outcome.DEAD],
        next_page_token=_token(log.log_id, parts) if parts else "",
        remaining=sum(part.end - part.first for part in parts),
    )


async def _parts(log: EventLog, states: list[PartitionState], request: ingestion_pb2.ReplayRequest) -> list[Part]:
    match request.WhichOneof("range"):
        case "offsets":
            parts = [_offsets(states, request.offsets)]
        case "times":
            first, end = (_time(request.times, name) for name in ("first", "end"))
            if end < first:
                raise InvalidField("times.end", end.isoformat(), "a time not before times.first")
            parts = [
                Part(
                    state.partition,
                    await in_time(log.offset_at(state.partition, first), "offsets"),
                    await in_time(log.offset_at(state.partition, end), "offsets"),
                )
                for state in states
            ]
        case _:
            raise InvalidField("range", "", "offsets or times, or the page_token of an earlier answer")
    return [part for part in parts if part.first < part.end]


def _offsets(states: list[PartitionState], asked: ingestion_pb2.OffsetRange) -> Part:
    if not 0 <= asked.partition < len(states):
        raise InvalidField("offsets.partition", asked.partition, f"0 to {len(states) - 1}")
    state = states[asked.partition]
    if not state.first_offset <= asked.first <= state.end_offset:
        raise InvalidField("offsets.first", asked.first, f"{state.first_offset} to {state.end_offset}")
    if asked.end < asked.first:
        raise InvalidField("offsets.end", asked.end, f"at least offsets.first, {asked.first}")
    return Part(asked.partition, asked.first, min(asked.end, state.end_offset))


def _time(times: ingestion_pb2.TimeRange, name: str) -> datetime:
    stamp: Timestamp = getattr(times, name)
    try:
        return stamp.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidField(f"times.{name}", stamp.seconds, f"a time ({error})") from None


def _token(log_id: str, parts: list[Part]) -> str:
    fields = [_VERSION, log_id, [[part.partition, part.first, part.end] for part in parts]]
    return base64.urlsafe_b64encode(json.dumps(fields, separators=(",", ":")).encode()).decode()


def _parse_token(token: str, log_id: str, states: list[PartitionState]) -> list[Part]:
    """What is left of the range; InvalidField for a token that no Replay answered."""
    try:
        version, told_id, told = json.loads(base64.b64decode(token, altchars=b"-_", validate=True))
        parts = [Part(int(partition), int(first), int(end)) for partition, first, end in told]
        sound = version == _VERSION and all(
            0 <= part.partition < len(states) and 0 <= part.first <= part.end <= states[part.partition].end_offset
            for part in parts
        )
    except (ValueError, TypeError, RecursionError, OverflowError):  # int(Infinity) overflows
        told_id, parts, sound = log_id, [], False
    if told_id != log_id:
        raise FailedPrecondition(f"the token is of log {told_id}; this one is {log_id}", reason="LOG_REPLACED")
    if not sound:
        raise InvalidField("page_token", token, "next_page_token as Replay answered it", reason="INVALID_TOKEN")
    return parts
