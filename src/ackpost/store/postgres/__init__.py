"""The store for many nodes: one PostgreSQL, hand-written SQL, set-wise statements."""

from ackpost.store.postgres.store import PostgresStore as PostgresStore
