"""Places in the event log."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class LogPosition:
    """A place in one log. Offsets of another log_id must not be compared with it."""

    log_id: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.log_id}-{self.partition}-{self.offset}"

    @classmethod
    def parse(cls, text: str) -> LogPosition:
        """The position that str() wrote; ValueError for any other text."""
        match text.rsplit("-", 2):
            case [log_id, partition, offset] if partition.isdecimal() and offset.isdecimal() and len(offset) < 19:
                return cls(log_id, int(partition), int(offset))
        raise ValueError(f"{text!r} is not a log position")
