"""The embedded store: one SQLite file, one writer thread, hand-written SQL."""

from ackpost.store.sqlite.store import SqliteStore as SqliteStore
