"""Text vectors and sums over citations in the ledger. Both are in fixed point, so that sums are exact.

Sums are stored by cited paper and citing year. A paper cited in several years also has a row EVERY_YEAR with the sum
over all its years. So the row of the smallest year always holds the total, and a projection reads only this row.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from operator import add
from typing import NamedTuple

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from citewell.profiler.ledger import schema
from citewell.profiler.ledger.database import Database, chunks, parameter_mark, read_in, select_in
from citewell.profiler.ledger.facts import TextKey
from citewell.profiler.ledger.rows import contribution_of
from citewell.profiler.ledger.rules import Contribution
from citewell.profiler.ledger.schema import EVERY_YEAR
from citewell.profiler.profiles import Fixed, ProfileSums, pair_mean
from citewell.runtime.errors import Internal

VECTOR = np.dtype("<i4")
SUM = np.dtype("<i8")
EDGES_AT_ONCE = 2000
ROWS_READ_AT_ONCE = 400

YearSums = dict[tuple[str, int], ProfileSums]
"""(cited, citing year or EVERY_YEAR) → sums."""


class VectorsMissing(Exception):
    """Texts lack vectors of a model. They must be encoded before the transaction is repeated."""


def read_vectors(connection: Connection, model: str, keys: Iterable[TextKey]) -> dict[TextKey, Fixed]:
    """The stored vectors of these texts, in fixed point. Texts without a vector are left out."""
    query = "SELECT text_key, vector FROM text_vectors WHERE model = ? AND text_key IN {}"
    rows = read_in(connection, query, keys, model)
    return {key: np.frombuffer(vector, VECTOR).astype(np.int64) for key, vector in rows}


def stored_keys(connection: Connection, model: str, keys: Iterable[TextKey]) -> set[TextKey]:
    """The keys of these texts that have a stored vector."""
    query = "SELECT text_key FROM text_vectors WHERE model = ? AND text_key IN {}"
    return {key for (key,) in read_in(connection, query, keys, model)}


def write_vectors(database: Database, connection: Connection, model: str, vectors: Mapping[TextKey, Fixed]) -> None:
    """Stores the vectors of texts that have none yet."""
    rows = [
        {"model": model, "text_key": key, "vector": vectors[key].astype(VECTOR).tobytes()} for key in sorted(vectors)
    ]
    database.insert_missing(connection, schema.text_vectors, rows)


def year_sums_of(
    net: Mapping[tuple[str, Contribution], int], vectors: Mapping[TextKey, Fixed], dimension: int
) -> YearSums:
    """The sums of these signed contributions, per cited paper and citing year."""
    groups = {(cited, contribution.year): None for cited, contribution in net}
    position = {group: number for number, group in enumerate(groups)}
    total = ProfileSums.zero(dimension, len(groups))
    for (cited, contribution), times in net.items():
        at = position[cited, contribution.year]
        total.count[at] += times
        total.contents[at] += times * vectors[contribution.text]
        if contribution.contexts:  # a reference without a context has s_ji = 0
            total.contexts[at] += times * pair_mean(np.stack([vectors[key] for key in contribution.contexts]))
    return {group: total[number] for group, number in position.items()}


def with_totals(sums: YearSums) -> YearSums:
    """These sums, which are all years of some papers, with the total of each paper that has several years."""
    years: dict[str, list[ProfileSums]] = defaultdict(list)
    for (cited, _), of_year in sums.items():
        years[cited].append(of_year)
    return sums | {(cited, EVERY_YEAR): reduce(add, some) for cited, some in years.items() if len(some) > 1}


def add_to_year_sums(database: Database, connection: Connection, model: str, added: YearSums) -> None:
    """Adds to the stored sums and totals. Deletes rows whose count becomes zero, and totals of single years."""
    changes: dict[str, ProfileSums] = {}
    for (cited, _), sums in added.items():
        changes[cited] = changes[cited] + sums if cited in changes else sums
    years = _read_years(connection, model, changes)
    totals = {cited: (cited, some.smallest) for cited, some in years.items()}
    stored = read_year_sums(connection, model, {*added, *totals.values()})
    new = {group: stored[group] + sums if group in stored else sums for group, sums in added.items()}
    gone = {group for group, sums in new.items() if not sums.count}
    numbers = Counter({cited: some.number for cited, some in years.items()})
    numbers.update(cited for cited, _ in new.keys() - stored.keys())
    numbers.subtract(cited for cited, _ in gone)
    for cited, change in changes.items():
        if numbers[cited] > 1:
            new[cited, EVERY_YEAR] = stored[totals[cited]] + change if cited in totals else change
        elif (cited, EVERY_YEAR) in stored:
            gone.add((cited, EVERY_YEAR))
    for (cited, year), sums in new.items():
        if sums.count < 0 or (sums.count == 0 and (sums.contexts.any() or sums.contents.any())):
            raise Internal(f"the sums of {cited!r} in {year} do not return to zero; run `citewell doctor profiles`")
    rows = [_sums_row(model, cited, year, new[cited, year]) for cited, year in sorted(new.keys() - gone)]
    database.upsert(connection, schema.year_sums, rows)
    if gone:
        table = schema.year_sums
        delete = sa.delete(table).where(
            table.c.model == sa.bindparam("old_model"),
            table.c.cited == sa.bindparam("old_cited"),
            table.c.year == sa.bindparam("old_year"),
        )
        old = [{"old_model": model, "old_cited": cited, "old_year": year} for cited, year in sorted(gone)]
        connection.execute(delete, old)


def replace_year_sums(
    database: Database, connection: Connection, model: str, cited: Iterable[str], sums: YearSums
) -> None:
    """Replaces all sums and totals of the cited papers. `sums` has no totals."""
    table = schema.year_sums
    for some in chunks(sorted(set(cited))):
        connection.execute(sa.delete(table).where(table.c.model == model, table.c.cited.in_(some)))
    sums = with_totals(sums)
    rows = [_sums_row(model, paper_id, year, sums[paper_id, year]) for paper_id, year in sorted(sums)]
    database.upsert(connection, table, rows)


class _Years(NamedTuple):
    """The rows of sums that a cited paper has."""

    smallest: int
    """The year of the row that holds the total: EVERY_YEAR, or the only year."""
    number: int
    """The number of years, not counting EVERY_YEAR."""


def _read_years(connection: Connection, model: str, cited: Iterable[str]) -> dict[str, _Years]:
    """The years of each cited paper that has sums. Reads only the index of the key."""
    query = "SELECT cited, MIN(year), COUNT(*) FROM year_sums WHERE model = ? AND cited IN {} GROUP BY cited"
    return {
        paper_id: _Years(smallest, rows - (smallest == EVERY_YEAR))
        for paper_id, smallest, rows in read_in(connection, query, cited, model)
    }


def read_year_sums(connection: Connection, model: str, groups: Iterable[tuple[str, int]]) -> YearSums:
    """The stored sums of (cited, year) groups."""
    found: YearSums = {}
    mark = parameter_mark(connection)
    for some in chunks(sorted(groups), ROWS_READ_AT_ONCE):
        # A join, because SQLite uses only the first column of the key for (cited, year) IN (…). Written as plain SQL,
        # because compiling a SQLAlchemy statement for each length of the list takes longer than executing it.
        wanted = ", ".join([f"({mark}, {mark})"] * len(some))
        rows = connection.exec_driver_sql(
            f"WITH wanted (cited, year) AS (VALUES {wanted}) SELECT s.* FROM wanted JOIN year_sums AS s "
            f"ON s.model = {mark} AND s.cited = wanted.cited AND s.year = wanted.year",
            (*chain.from_iterable(some), model),
        )
        found.update(((row.cited, row.year), sums_of(row)) for row in rows)
    return found


def sums_from_edges(connection: Connection, model: str, dimension: int, cited: Iterable[str]) -> YearSums:
    """The sums of these papers, recomputed from all their citations."""
    edges = schema.edges
    found: YearSums = {}
    net: Counter[tuple[str, Contribution]] = Counter()

    def add() -> None:
        texts = {key for _, contribution in net for key in (contribution.text, *contribution.contexts)}
        for group, sums in year_sums_of(net, read_vectors(connection, model, texts), dimension).items():
            found[group] = found[group] + sums if group in found else sums
        net.clear()

    # All rows are fetched first, because the cursor and the reads of vectors share one connection.
    for row in list(select_in(connection, sa.select(edges).where(edges.c.present), edges.c.cited, cited)):
        net[row.cited, contribution_of(row)] += 1
        if len(net) == EDGES_AT_ONCE:  # a paper may be cited 100,000 times
            add()
    add()
    return found


def read_all_sums(connection: Connection, model: str, cited: Iterable[str]) -> YearSums:
    """All stored sums of the cited papers, and their totals."""
    table = schema.year_sums
    rows = select_in(connection, sa.select(table).where(table.c.model == model), table.c.cited, cited)
    return {(row.cited, row.year): sums_of(row) for row in rows}


def read_years(connection: Connection, model: str, cited: Iterable[str], before: int | None = None) -> YearSums:
    """The stored sums of the cited papers by year, without totals. With `before`, only of known years before it."""
    table = schema.year_sums
    wanted = [table.c.year != EVERY_YEAR] if before is None else [table.c.year > 0, table.c.year < before]
    query = sa.select(table).where(table.c.model == model, *wanted)
    return {(row.cited, row.year): sums_of(row) for row in select_in(connection, query, table.c.cited, cited)}


def read_totals(connection: Connection, model: str, ids: Sequence[str], dimension: int) -> ProfileSums:
    """The total of each paper, as a stack in the order of the ids. Called for each projection."""
    position = {paper_id: number for number, paper_id in enumerate(ids)}
    totals = ProfileSums.zero(dimension, len(ids))
    mark = parameter_mark(connection)
    for some in chunks(sorted(position), ROWS_READ_AT_ONCE):
        wanted = ", ".join([f"({mark})"] * len(some))  # plain SQL, for the reasons given in `read_year_sums`
        rows = connection.exec_driver_sql(
            f"WITH wanted (cited) AS (VALUES {wanted}) SELECT s.cited, s.contexts, s.contents, s.count FROM wanted "
            f"JOIN year_sums AS s ON s.model = {mark} AND s.cited = wanted.cited AND s.year = "
            f"(SELECT MIN(y.year) FROM year_sums AS y WHERE y.model = {mark} AND y.cited = wanted.cited)",
            (*some, model, model),
        ).all()
        if rows:
            cited, contexts, contents, counts = zip(*rows, strict=True)
            at = [position[paper_id] for paper_id in cited]
            totals.contexts[at] = np.frombuffer(b"".join(contexts), SUM).reshape(len(rows), dimension)
            totals.contents[at] = np.frombuffer(b"".join(contents), SUM).reshape(len(rows), dimension)
            totals.count[at] = counts
    return totals


def totals_of(ids: Sequence[str], sums: YearSums, dimension: int) -> ProfileSums:
    """The sums of each paper over the years given, as a stack in the order of the ids."""
    position = {paper_id: number for number, paper_id in enumerate(ids)}
    totals = ProfileSums.zero(dimension, len(ids))
    for (cited, _), of_year in sums.items():
        at = position[cited]
        totals.contexts[at] += of_year.contexts
        totals.contents[at] += of_year.contents
        totals.count[at] += of_year.count
    return totals


def sums_of(row: sa.Row[tuple[object, ...]]) -> ProfileSums:
    """The sums in a row of year_sums."""
    return ProfileSums(
        np.frombuffer(row.contexts, SUM), np.frombuffer(row.contents, SUM), np.asarray(row.count, np.int64)
    )


def _sums_row(model: str, cited: str, year: int, sums: ProfileSums) -> dict[str, object]:
    return {
        "model": model,
        "cited": cited,
        "year": year,
        "contexts": sums.contexts.astype(SUM, copy=False).tobytes(),
        "contents": sums.contents.astype(SUM, copy=False).tobytes(),
        "count": int(sums.count),
    }


@dataclass(frozen=True, slots=True)
class Model:
    """An encoder whose vectors the ledger stores."""

    hash: str
    name: str
    dimension: int
    state: str
    """ENCODING: older texts are still being encoded, there are no sums. SUMMING: papers up to the id `summed_to` have
    sums. READY: all papers have sums. New texts are encoded when they arrive, in every state.
    """
    summed_to: str = ""

    def keeps_sums_of(self, cited: str) -> bool:
        return self.state == "READY" or (self.state == "SUMMING" and cited <= self.summed_to)


def read_models(connection: Connection) -> list[Model]:
    """All models that a view uses."""
    table = schema.models
    return [
        Model(row.hash, row.name, row.dimension, row.state, row.summed_to)
        for row in connection.execute(sa.select(table).order_by(table.c.hash))
    ]
