"""Lists dead letters, and publishes their events again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from citewell.ingestion.ledger_client import parse_event
from citewell.ingestion.logs.event_log import DeadLetter, EventLog
from citewell.ingestion.publishing import Publisher, event_id_of
from citewell.ingestion.tokens import decode_token, encode_token
from citewell.ingestion.v1 import ingestion_pb2
from citewell.runtime.deadlines import in_time
from citewell.runtime.errors import FailedPrecondition, InvalidField, NotFound
from citewell.scholarly.positions import LogPosition
from citewell.types.messages import position_to_message

DEFAULT_PAGE, LARGEST_PAGE = 50, 1000
MOST_REDRIVEN = 1000
_REDRIVE = "redrive/"
"""Begins the ids of events that are published again: redrive/FIRST-LETTER/UUID. A listed letter has its id alone."""
READ_AT_ONCE = 8
"""Letters held whole: each has up to 8 MiB."""


async def list_dead_letters(
    log: EventLog, request: ingestion_pb2.ListDeadLettersRequest
) -> ingestion_pb2.ListDeadLettersResponse:
    """A page, in the order of the records' positions."""
    if not 0 <= request.page_size <= LARGEST_PAGE:
        raise InvalidField("page_size", request.page_size, f"0 (the default, {DEFAULT_PAGE}) to {LARGEST_PAGE}")
    size = request.page_size or DEFAULT_PAGE
    after = decode_token(request.page_token, "page_token")[0] if request.page_token else None
    letters = await in_time(log.dead_letters(after, size + 1), "dead_letters")
    response = ingestion_pb2.ListDeadLettersResponse(dead_letters=map(_letter_to_message, letters[:size]))
    if len(letters) > size:
        response.next_page_token = encode_token(letters[size - 1].record.position, "")
    return response


async def redrive(
    log: EventLog, publisher: Publisher, request: ingestion_pb2.RedriveDeadLettersRequest
) -> ingestion_pb2.RedriveDeadLettersResponse:
    """Publishes every event asked for, or none when one of them does not exist or cannot be published."""
    if len(request.ids) > MOST_REDRIVEN:
        raise InvalidField("ids", f"{len(request.ids)} entries", f"at most {MOST_REDRIVEN} entries")
    positions = [_position_of(letter_id, f"ids[{number}]") for number, letter_id in enumerate(request.ids)]
    chunks = [positions[start : start + READ_AT_ONCE] for start in range(0, len(positions), READ_AT_ONCE)]
    for chunk in chunks:
        for letter in await _found(log, chunk):
            _require_event(letter)
    response = ingestion_pb2.RedriveDeadLettersResponse()
    for chunk in chunks:
        again = [_redrive(publisher, letter, request.request_id) for letter in await _found(log, chunk)]
        response.published.extend(await asyncio.gather(*again))
    return response


async def _found(log: EventLog, positions: Sequence[LogPosition]) -> list[DeadLetter]:
    """The letters of these positions; NotFound names the first that has none."""
    letters = await in_time(log.find_dead_letters(positions), "dead_letters")
    if missing := set(positions) - {letter.record.position for letter in letters}:
        raise NotFound(f"there is no dead letter {str(min(missing))!r}", reason="NO_SUCH_DEAD_LETTER")
    return letters


def _require_event(letter: DeadLetter) -> None:
    try:
        parse_event(letter.record.value)
    except DecodeError:
        raise FailedPrecondition(
            f"dead letter {letter.record.position} holds no event that could be published again ({letter.reason})",
            reason="NOT_AN_EVENT",
        ) from None


async def _redrive(publisher: Publisher, letter: DeadLetter, request_id: str) -> ingestion_pb2.PublishResponse:
    """Publishes the letter's event under another id, so that the ledger judges it anew."""
    event = parse_event(letter.record.value)
    first = redrive_of(letter.event_id) or str(letter.record.position)
    event.event_id = f"{_REDRIVE}{first}/{event_id_of(request_id, str(letter.record.position).encode())}"
    return await publisher.append(letter.record.key, event)


def _letter_to_message(letter: DeadLetter) -> ingestion_pb2.DeadLetter:
    recorded = Timestamp()
    recorded.FromDatetime(letter.recorded)
    return ingestion_pb2.DeadLetter(
        id=str(letter.record.position),
        position=position_to_message(letter.record.position),
        event_id=letter.event_id,
        paper_id=letter.paper_id,
        reason=letter.reason,
        message=letter.message,
        recorded=recorded,
        redrive_of=redrive_of(letter.event_id),
    )


def redrive_of(event_id: str) -> str:
    """The first dead letter of an event that was published again, which is a part of its id; empty for other events."""
    return event_id.removeprefix(_REDRIVE).rpartition("/")[0] if event_id.startswith(_REDRIVE) else ""


def _position_of(letter_id: str, field: str) -> LogPosition:
    try:
        return LogPosition.parse(letter_id)
    except ValueError:
        raise InvalidField(field, letter_id, "a dead letter's id as ListDeadLetters answers it") from None
