"""Words: terms of texts, what citing contexts add to a paper's words, statistics, and what a view's points hold.

Only adds: a ledger of 0001 is filled in the background, and its views keep the form that they have.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
# Defaults, because a 0001 profiler that still runs inserts views too.
OF_VIEWS = (
    ("lexicon", sa.Text, ""),
    ("title_weight", sa.Double, "0"),
    ("abstract_weight", sa.Double, "0"),
    ("context_weight", sa.Double, "0"),
    ("max_terms", sa.Integer, "0"),
    ("extractor", sa.Text, "whole-context/1"),
)


def upgrade() -> None:
    op.create_table(
        "lexicons",
        sa.Column("name", ID, primary_key=True),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("counted_to", ID, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "text_terms",
        sa.Column("text_key", sa.LargeBinary, primary_key=True),
        sa.Column("terms", sa.LargeBinary, nullable=False),
        sa.Column("title", sa.LargeBinary, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "said_terms",
        sa.Column("cited", ID, primary_key=True),
        sa.Column("year", sa.Integer, primary_key=True),
        sa.Column("run", sa.Integer, primary_key=True),
        sa.Column("size", sa.Integer, nullable=False),
        sa.Column("terms", sa.LargeBinary, nullable=False),
        sa.Column("counts", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "statistics",
        sa.Column("rules", ID, primary_key=True),
        sa.Column("year", sa.Integer, primary_key=True),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("papers", sa.BigInteger, nullable=False),
        sa.Column("citations", sa.BigInteger, nullable=False),
        sa.Column("length", sa.Double, nullable=False),
        sa.Column("terms", sa.LargeBinary, nullable=False),
        sa.Column("frequencies", sa.LargeBinary, nullable=False),
    )
    for name, kind, default in OF_VIEWS:
        op.add_column("views", sa.Column(name, kind, nullable=False, server_default=default))


def downgrade() -> None:
    for name, _, _ in OF_VIEWS:
        op.drop_column("views", name)
    for table in ("statistics", "said_terms", "text_terms", "lexicons"):
        op.drop_table(table)
