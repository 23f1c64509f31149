"""Totals: a paper cited in more than one year gets a row of sums with year -1, the sum over all its years."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

EVERY_YEAR = -1
SUM = np.dtype("<i8")
PAPERS_AT_ONCE = 200

SUMS = sa.table(
    "year_sums",
    sa.column("model", sa.Text),
    sa.column("cited", sa.Text),
    sa.column("year", sa.Integer),
    sa.column("contexts", sa.LargeBinary),
    sa.column("contents", sa.LargeBinary),
    sa.column("count", sa.BigInteger),
)


def upgrade() -> None:
    connection, columns = op.get_bind(), SUMS.c
    several = sa.select(columns.model, columns.cited).group_by(columns.model, columns.cited)
    papers: dict[str, list[str]] = defaultdict(list)
    for model, cited in connection.execute(several.having(sa.func.count() > 1)):
        papers[model].append(cited)
    for model, ids in papers.items():
        for at in range(0, len(ids), PAPERS_AT_ONCE):
            some = ids[at : at + PAPERS_AT_ONCE]
            rows = connection.execute(sa.select(SUMS).where(columns.model == model, columns.cited.in_(some)))
            connection.execute(sa.insert(SUMS), _totals(model, rows))


def _totals(model: str, rows: sa.CursorResult[tuple[object, ...]]) -> list[dict[str, object]]:
    """The rows EVERY_YEAR of some papers, from all their years."""
    years = defaultdict(list)
    for row in rows.mappings():
        years[row["cited"]].append(row)
    return [
        {
            "model": model,
            "cited": cited,
            "year": EVERY_YEAR,
            "contexts": _sum([row["contexts"] for row in of_paper]),
            "contents": _sum([row["contents"] for row in of_paper]),
            "count": sum(row["count"] for row in of_paper),
        }
        for cited, of_paper in years.items()
    ]


def _sum(vectors: list[bytes]) -> bytes:
    total: np.ndarray[tuple[int], np.dtype[np.int64]] = np.stack([np.frombuffer(v, SUM) for v in vectors]).sum(axis=0)
    return total.astype(SUM).tobytes()


def downgrade() -> None:
    op.execute(sa.delete(SUMS).where(SUMS.c.year == EVERY_YEAR))
