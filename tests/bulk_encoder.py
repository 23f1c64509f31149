"""The encoder that bulk builds of the tests name: the same vectors for the same text in every process."""

from __future__ import annotations

from tests.ledger_world import HashEncoder


def make(name: str) -> HashEncoder:
    return HashEncoder(name)
