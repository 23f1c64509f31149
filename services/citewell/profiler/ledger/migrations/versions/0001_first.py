"""The first ledger."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "bodies",
        sa.Column("paper_id", ID, primary_key=True),
        sa.Column("publication", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "claims",
        sa.Column("alias", ID, primary_key=True),
        sa.Column("paper_id", ID, primary_key=True),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "edges",
        sa.Column("citing", ID, primary_key=True),
        sa.Column("cited", ID, primary_key=True),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("present", sa.Boolean, nullable=False),
        sa.Column("year", sa.Integer, nullable=False),
        sa.Column("day", sa.Integer, nullable=False),
        sa.Column("text_key", sa.LargeBinary, nullable=False),
        sa.Column("context_keys", sa.LargeBinary, nullable=False),
        sa.Column("gone_keys", sa.LargeBinary, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("edges_by_cited", "edges", ["cited", "year"])
    op.create_table(
        "encode_marks",
        sa.Column("model", ID, primary_key=True),
        sa.Column("paper_id", ID, primary_key=True),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "events",
        sa.Column("event_id", ID, primary_key=True),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("effect", ID, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("events_by_effect", "events", ["effect"])
    op.create_table(
        "marks",
        sa.Column("view", ID, primary_key=True),
        sa.Column("kind", ID, primary_key=True),
        sa.Column("object", ID, primary_key=True),
        sa.Column("version", sa.BigInteger, primary_key=True),
        sa.Column("event", ID, nullable=False),
        sa.Column("bulk", sa.Boolean, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("marks_by_event", "marks", ["view", "event"])
    op.create_index("marks_in_turn", "marks", ["view", "bulk", "kind", "object"])
    op.create_table(
        "meta",
        sa.Column("name", ID, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "models",
        sa.Column("hash", ID, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("dimension", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("summed_to", ID, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "papers",
        sa.Column("id", ID, primary_key=True),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("content_hash", sa.Text, nullable=False),
        sa.Column("retracted", sa.Boolean, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("body_revision", sa.BigInteger, nullable=False),
        sa.Column("text_key", sa.LargeBinary, nullable=False),
        sa.Column("last_event", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "positions",
        sa.Column("log_id", ID, primary_key=True),
        sa.Column("log_partition", sa.Integer, primary_key=True),
        sa.Column("applied", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "sources",
        sa.Column("log_id", ID, primary_key=True),
        sa.Column("log_partition", sa.Integer, primary_key=True),
        sa.Column("log_offset", sa.BigInteger, primary_key=True),
        sa.Column("event_id", ID, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("sources_by_event", "sources", ["event_id"])
    op.create_table(
        "text_vectors",
        sa.Column("model", ID, primary_key=True),
        sa.Column("text_key", sa.LargeBinary, primary_key=True),
        sa.Column("vector", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "views",
        sa.Column("name", ID, primary_key=True),
        sa.Column("model", ID, nullable=False),
        sa.Column("alpha", sa.Double, nullable=False),
        sa.Column("beta", sa.Double, nullable=False),
        sa.Column("epoch", sa.Text, nullable=False),
        sa.Column("serving", sa.Boolean, nullable=False),
        sa.Column("projected", sa.Boolean, nullable=False),
        sa.Column("switch_when_complete", sa.Boolean, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "year_sums",
        sa.Column("model", ID, primary_key=True),
        sa.Column("cited", ID, primary_key=True),
        sa.Column("year", sa.Integer, primary_key=True),
        sa.Column("contexts", sa.LargeBinary, nullable=False),
        sa.Column("contents", sa.LargeBinary, nullable=False),
        sa.Column("count", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    for table in (
        "year_sums",
        "views",
        "text_vectors",
        "sources",
        "positions",
        "papers",
        "models",
        "meta",
        "marks",
        "events",
        "encode_marks",
        "edges",
        "claims",
        "bodies",
    ):
        op.drop_table(table)
