"""Counts words again from publications, and compares the ledger's counts with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from citewell.profiler.ledger import schema
from citewell.profiler.ledger.database import Database, chunks
from citewell.profiler.ledger.facts import TextKey, read_facts
from citewell.profiler.ledger.rows import LedgerRows
from citewell.profiler.ledger.said_terms import (
    SaidTerms,
    read_all_said_years,
    replace_said_terms,
    said_terms_from_edges,
)
from citewell.profiler.ledger.schema import EVERY_YEAR
from citewell.profiler.ledger.text_terms import counted, read_lexicon, read_text_terms, write_text_terms
from citewell.profiler.lexical import NO_COUNTS, TextTerms


@dataclass(frozen=True, slots=True)
class Fault:
    """One finding about one paper."""

    paper_id: str
    kind: str
    detail: str


def word_faults(database: Database, papers: Sequence[str], repair: bool) -> list[Fault]:
    """Finds wrong term counts in these papers' own texts and in the contexts that cite them.

    Finds nothing while the ledger is still counting words.
    """
    with database.writing(alone=True) if repair else database.reading() as connection:
        lexicon = read_lexicon(connection)
        if lexicon is None or lexicon.state != "READY":
            return []
        faults, right = _text_faults(connection, papers)
        if repair and faults:
            for some in chunks(sorted(right)):
                table = schema.text_terms
                connection.execute(sa.delete(table).where(table.c.text_key.in_(some)))
            write_text_terms(database, connection, right)
        said = said_terms_from_edges(connection, papers)
        of_others = list(_differences(read_all_said_years(connection, papers), said))
        if repair and of_others:
            replace_said_terms(database, connection, papers, said)
        return faults + of_others


def _text_faults(connection: Connection, papers: Sequence[str]) -> tuple[list[Fault], dict[TextKey, TextTerms]]:
    faults: list[Fault] = []
    right: dict[TextKey, TextTerms] = {}
    for paper_id, body in sorted(LedgerRows(connection).bodies(papers).items()):
        of_body = counted(read_facts(body)[1])
        stored = read_text_terms(connection, of_body)
        wrong = sum(key not in stored or not _equal(stored[key], terms) for key, terms in of_body.items())
        if wrong:
            faults.append(Fault(paper_id, "WORDS_MISMATCH", f"{wrong} of its texts are counted wrongly or not at all"))
        right |= of_body
    return faults, right


def _equal(one: TextTerms, other: TextTerms) -> bool:
    return all(
        np.array_equal(*pair) for pair in ((one.ids, other.ids), (one.title, other.title), (one.body, other.body))
    )


def _differences(stored: SaidTerms, right: SaidTerms) -> Iterator[Fault]:
    for group in sorted({*stored, *right}):
        have, want = stored.get(group, NO_COUNTS), right.get(group, NO_COUNTS)
        if have != want:
            cited, year = group
            years = "all years" if year == EVERY_YEAR else f"year {year}"
            detail = f"{years}: {have.counts.sum()} words said of it, its citations say {want.counts.sum()}"
            yield Fault(cited, "WORDS_MISMATCH", detail)
