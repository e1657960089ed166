"""Alembic's entry: it migrates over the connection that the store hands it."""

from alembic import context

from gpuspawner.service.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
