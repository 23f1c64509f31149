"""Runs the migrations on the connection that ledger/database.py opened; never by itself."""

from alembic import context

from citewell.profiler.ledger.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=False)
context.run_migrations()
