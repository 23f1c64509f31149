"""Term counts of the contexts that cite a paper, stored in the ledger by citing year and for all years together.

A group is a (cited paper, citing year). Its counts are the sum of its runs, as in a log-structured merge tree: a
citation is added to the last run while that is small, else it begins a new run. A run larger than half of the previous
one is merged into it. So a group has few runs, and one more citation of a paper cited 100,000 times rewrites little.
The sum does not depend on how the counts are divided into runs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from citewell.profiler.ledger import schema
from citewell.profiler.ledger.database import Database, chunks, parameter_mark, read_in, select_in
from citewell.profiler.ledger.facts import TextKey
from citewell.profiler.ledger.rows import contribution_of
from citewell.profiler.ledger.rules import Contribution
from citewell.profiler.ledger.schema import EVERY_YEAR
from citewell.profiler.ledger.text_terms import TERM, read_text_terms
from citewell.profiler.lexical import Counts, TextTerms, added, added_by_group, grouped
from citewell.runtime.errors import Internal

COUNT = np.dtype("<i4")
LARGEST_COUNT = np.iinfo(COUNT).max

# A run of fewer terms is small: every citation rewrites it. It is about as large as a row of vector sums.
SMALL = 512
EDGES_AT_ONCE = 2000

Group = tuple[str, int]
"""(cited, citing year), or (cited, EVERY_YEAR)."""
SaidTerms = dict[Group, Counts]


@dataclass(frozen=True, slots=True)
class _Run:
    number: int
    size: int
    counts: Counts | None
    """None if the run is large and was not read yet."""


def said_terms_of(net: Mapping[tuple[str, Contribution], int], terms: Mapping[TextKey, TextTerms]) -> SaidTerms:
    """The term counts of these signed contributions, per cited paper and citing year, and over all years."""
    times: Counter[tuple[Group, TextKey]] = Counter()
    for (cited, contribution), sign in net.items():
        for key in contribution.contexts:
            times[(cited, contribution.year), key] += sign
            times[(cited, EVERY_YEAR), key] += sign
    times = Counter({said: count for said, count in times.items() if count and len(terms[said[1]].ids)})
    if not times:
        return {}
    groups = {group: number for number, group in enumerate(dict.fromkeys(group for group, _ in times))}
    sizes = [len(terms[key].ids) for _, key in times]
    found = grouped(
        np.repeat([groups[group] for group, _ in times], sizes),
        np.concatenate([terms[key].ids for _, key in times]),
        np.concatenate([count * terms[key].body for (_, key), count in times.items()]),
    )
    return {group: found[number] for group, number in groups.items() if number in found}


def add_to_said_terms(database: Database, connection: Connection, changes: SaidTerms) -> None:
    """Adds the changes to the stored counts."""
    rows, gone = [], []
    stored = _read_runs(connection, changes)
    merged = _merged(connection, stored, changes)
    for group in sorted(changes):
        runs = stored.get(group, [])
        kept, total = merged[group]
        if len(total):
            rows.append(_row(group, kept, total))
        first_gone = kept + 1 if len(total) else kept
        gone += [{"old_cited": group[0], "old_year": group[1], "old_run": run.number} for run in runs[first_gone:]]
    database.upsert(connection, schema.said_terms, rows)
    if gone:
        table = schema.said_terms
        delete = sa.delete(table).where(
            table.c.cited == sa.bindparam("old_cited"),
            table.c.year == sa.bindparam("old_year"),
            table.c.run == sa.bindparam("old_run"),
        )
        connection.execute(delete, gone)


def read_said_terms(connection: Connection, cited: Iterable[str]) -> dict[str, Counts]:
    """The counts of each paper over all citing years."""
    query = "SELECT * FROM said_terms WHERE year = ? AND cited IN {}"
    return {paper_id: counts for (paper_id, _), counts in _sums(read_in(connection, query, cited, EVERY_YEAR)).items()}


def read_said_before(connection: Connection, cited: Sequence[str], year: int) -> dict[str, Counts]:
    """The counts of each paper over citing years before `year`. Citations of an unknown year are left out."""
    table = schema.said_terms
    query = sa.select(table).where(table.c.year > 0, table.c.year < year)
    years = _sums(select_in(connection, query, table.c.cited, cited))
    return total_by_paper((cited, counts) for (cited, _), counts in years.items())


def total_by_paper(counts: Iterable[tuple[str, Counts]]) -> dict[str, Counts]:
    """The sum of the counts of each paper."""
    parts: dict[str, list[Counts]] = defaultdict(list)
    for cited, some in counts:
        parts[cited].append(some)
    return {cited: added(some) for cited, some in parts.items()}


def read_all_said_years(connection: Connection, cited: Iterable[str]) -> SaidTerms:
    """The counts of each paper by citing year, and over all years."""
    table = schema.said_terms
    return _sums(select_in(connection, sa.select(table), table.c.cited, cited))


def said_terms_from_edges(connection: Connection, cited: Iterable[str]) -> SaidTerms:
    """The counts that should be stored for these papers, recomputed from all their citations."""
    edges = schema.edges
    return said_by(connection, select_in(connection, sa.select(edges).where(edges.c.present), edges.c.cited, cited))


def said_by(connection: Connection, rows: Iterable[sa.Row[Any]]) -> SaidTerms:
    """The counts of the contexts of these rows of edges."""
    found: dict[Group, list[Counts]] = defaultdict(list)
    net: Counter[tuple[str, Contribution]] = Counter()

    def add() -> None:
        texts = {key for _, contribution in net for key in contribution.contexts}
        for group, counts in said_terms_of(net, read_text_terms(connection, texts)).items():
            found[group].append(counts)
        net.clear()

    for row in list(rows):  # fetched first, because the cursor and the reads of terms share one connection
        net[row.cited, contribution_of(row)] += 1
        if len(net) == EDGES_AT_ONCE:  # a paper may be cited 100,000 times
            add()
    add()
    return {group: added(parts) for group, parts in found.items()}


def replace_said_terms(database: Database, connection: Connection, cited: Iterable[str], said: SaidTerms) -> None:
    """Replaces all stored counts of the cited papers."""
    table = schema.said_terms
    for some in chunks(sorted(set(cited))):
        connection.execute(sa.delete(table).where(table.c.cited.in_(some)))
    database.upsert(connection, table, [_row(group, 0, said[group]) for group in sorted(said)])


def _merged(
    connection: Connection, stored: Mapping[Group, list[_Run]], changes: SaidTerms
) -> dict[Group, tuple[int, Counts]]:
    """For each group the number of leading runs that are not changed, and the counts of the run that replaces the rest.

    All groups are merged together, one more run of each at a time.
    """
    totals = dict(changes)
    kept = {group: len(stored.get(group, ())) for group in changes}
    merging = list(changes)
    while merging:
        merging = [
            group for group in merging if kept[group] and _absorbs(totals[group], stored[group][kept[group] - 1])
        ]
        parts: dict[Group, list[Counts]] = {}
        for group in merging:
            kept[group] -= 1
            run = stored[group][kept[group]]
            parts[group] = [run.counts or _read_run(connection, group, run.number), totals[group]]
        totals |= added_by_group(parts)
    for group, total in totals.items():
        if not kept[group] and len(total) and total.counts.min() < 0:
            raise Internal(f"words said of {group[0]!r} are counted less than never; run `citewell doctor profiles`")
    return {group: (kept[group], totals[group]) for group in changes}


def _absorbs(total: Counts, run: _Run) -> bool:
    """Whether counts are merged with the run before them."""
    return run.size < SMALL or run.size <= 2 * len(total)


def _read_runs(connection: Connection, groups: Iterable[Group]) -> dict[Group, list[_Run]]:
    """The runs of each group in order. Large runs are read without their counts."""
    found: dict[Group, list[_Run]] = defaultdict(list)
    mark = parameter_mark(connection)
    for some in chunks(sorted(groups), 400):
        # Plain SQL with a join, for the reasons given in `sums.read_year_sums`. The CASE avoids reading large blobs.
        wanted = ", ".join([f"({mark}, {mark})"] * len(some))
        rows = connection.exec_driver_sql(
            f"WITH wanted (cited, year) AS (VALUES {wanted}) SELECT s.cited, s.year, s.run, s.size, "
            f"CASE WHEN s.size < {SMALL} THEN s.terms END AS terms, "
            f"CASE WHEN s.size < {SMALL} THEN s.counts END AS counts "
            f"FROM wanted JOIN said_terms AS s ON s.cited = wanted.cited AND s.year = wanted.year",
            tuple(chain.from_iterable(some)),
        )
        for cited, year, run, size, terms, counts in rows.all():
            found[cited, year].append(_Run(run, size, None if terms is None else _counts(terms, counts)))
    for runs in found.values():
        if len(runs) > 1:  # sorted here, because the database would move the counts to sort them
            runs.sort(key=lambda run: run.number)
    return found


def _read_run(connection: Connection, group: Group, run: int) -> Counts:
    table = schema.said_terms
    query = sa.select(table.c.terms, table.c.counts).where(
        table.c.cited == group[0], table.c.year == group[1], table.c.run == run
    )
    row = connection.execute(query).one()
    return _counts(row.terms, row.counts)


def _sums(rows: Iterable[sa.Row[Any]]) -> SaidTerms:
    runs: dict[Group, list[Counts]] = defaultdict(list)
    for row in rows:
        runs[row.cited, row.year].append(_counts(row.terms, row.counts))
    sums = {group: added(parts) if len(parts) > 1 else parts[0] for group, parts in runs.items()}
    return {group: counts for group, counts in sums.items() if len(counts)}


def _counts(terms: bytes, counts: bytes) -> Counts:
    return Counts(np.frombuffer(terms, TERM), np.frombuffer(counts, COUNT).astype(np.int64))


def _row(group: Group, run: int, counts: Counts) -> dict[str, object]:
    if max(counts.counts.max(), -counts.counts.min()) > LARGEST_COUNT:
        raise Internal(f"a word is said of {group[0]!r} more often than the ledger can count")
    return {
        "cited": group[0],
        "year": group[1],
        "run": run,
        "size": len(counts),
        "terms": counts.ids.astype(TERM).tobytes(),
        "counts": counts.counts.astype(COUNT).tobytes(),
    }
