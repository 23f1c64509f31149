"""Term counts of texts in the ledger. A text is counted once, the first writer wins, and rows are never changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from citewell.profiler.ledger import schema
from citewell.profiler.ledger.database import Database, read_in
from citewell.profiler.ledger.facts import PaperText, Text, TextKey
from citewell.profiler.lexical import TextTerms, count_text
from citewell.runtime.errors import FailedPrecondition
from citewell.scholarly.contexts import normalise
from citewell.scholarly.words import LEXICON

TERM = np.dtype("<u4")
COUNT = np.dtype("<u2")
"""16 bits are enough, because the longest allowed abstract has fewer than 65,536 words."""


@dataclass(frozen=True, slots=True)
class Lexicon:
    """The progress of counting the words in the ledger."""

    name: str
    state: str
    """TEXTS: older texts are being counted, there are no sums over citing contexts. SAID: papers up to the id
    `counted_to` have sums. READY: all papers have sums. New texts are counted when they arrive, in every state.
    """
    counted_to: str = ""

    def keeps_words_said_of(self, cited: str) -> bool:
        return self.state == "READY" or (self.state == "SAID" and cited <= self.counted_to)


def read_lexicon(connection: Connection) -> Lexicon | None:
    """None if no profiler that counts words has opened the ledger yet.

    Raises FailedPrecondition if the ledger's words are counted by other rules than this citewell's.
    """
    row = connection.execute(sa.select(schema.lexicons)).first()
    if row is None:
        return None
    if row.name != LEXICON:
        raise FailedPrecondition(
            f"the ledger's words are counted by the rules {row.name!r}, this citewell counts by {LEXICON!r}: run the "
            "same version of every profiler",
            reason="LEXICON_MISMATCH",
            found=LEXICON,
            expected=row.name,
        )
    return Lexicon(row.name, row.state, row.counted_to)


def open_lexicon(database: Database) -> None:
    """Starts counting by this citewell's rules, unless the ledger is counted by them already. Deletes other counts."""
    with database.reading() as connection:
        if connection.scalar(sa.select(schema.lexicons.c.name)) == LEXICON:
            return
    with database.writing(alone=True) as connection:
        if connection.scalar(sa.select(schema.lexicons.c.name)) == LEXICON:
            return  # another process has done it in the meantime
        for table in (schema.lexicons, schema.said_terms, schema.statistics, schema.text_terms):
            connection.execute(sa.delete(table))
        told = connection.execute(sa.select(schema.bodies.c.paper_id).limit(1)).first()
        row = {"name": LEXICON, "state": "TEXTS" if told else "READY", "counted_to": ""}
        connection.execute(sa.insert(schema.lexicons).values(**row))


def move_lexicon(connection: Connection, before: Lexicon, state: str, counted_to: str) -> None:
    """Stores the new progress, unless another process has changed it since `before` was read."""
    table = schema.lexicons
    here = sa.and_(table.c.name == before.name, table.c.state == before.state, table.c.counted_to == before.counted_to)
    connection.execute(sa.update(table).where(here).values(state=state, counted_to=counted_to))


def counted(texts: Mapping[TextKey, Text]) -> dict[TextKey, TextTerms]:
    """The terms of these texts."""
    return {key: terms_of(text) for key, text in texts.items()}


def terms_of(text: Text) -> TextTerms:
    """The terms of one text. The text is normalised first, as for its key, so that equal keys mean equal terms."""
    if isinstance(text, PaperText):
        return count_text(normalise(text.title), normalise(text.abstract))
    return count_text("", text.text)


def write_text_terms(database: Database, connection: Connection, terms: Mapping[TextKey, TextTerms]) -> None:
    """Stores the terms of texts that have none yet."""
    rows = []
    for key in sorted(terms):
        of_text = terms[key]
        title = of_text.title.astype(COUNT).tobytes() if of_text.title.any() else b""
        body = of_text.body.astype(COUNT).tobytes()
        rows.append({"text_key": key, "terms": of_text.ids.astype(TERM).tobytes(), "title": title, "body": body})
    database.insert_missing(connection, schema.text_terms, rows)


def read_text_terms(connection: Connection, keys: Iterable[TextKey]) -> dict[TextKey, TextTerms]:
    """The stored terms of these texts."""
    found: dict[TextKey, TextTerms] = {}
    query = "SELECT text_key, terms, title, body FROM text_terms WHERE text_key IN {}"
    for key, terms, of_title, of_body in read_in(connection, query, keys):
        ids, body = np.frombuffer(terms, TERM), np.frombuffer(of_body, COUNT).astype(np.int64)
        title = np.frombuffer(of_title, COUNT).astype(np.int64) if of_title else np.zeros(len(ids), np.int64)
        found[key] = TextTerms(ids, title, body)
    return found
