"""The transactional outbox: an event is written in the transaction that it tells of, and sent once that is committed.

    outbox.publish(connection, "order.created", {"id": 7}, key="order-7")

writes one row into the table ``ackpost_outbox`` through the caller's own connection. Committed, it will be delivered;
rolled back, wholly or to a savepoint, it never was. ``publish`` takes what is synchronous: psycopg 3 and ``sqlite3``
connections and cursors, SQLAlchemy sessions and connections, Django's ``connection``. ``publish_async`` takes asyncpg
and psycopg 3 connections, SQLAlchemy's async sessions and connections. No driver is imported here.
"""

from ackpost.outbox.publishing import publish, publish_async
from ackpost.outbox.tables import create, create_async, schema

__all__ = ["create", "create_async", "publish", "publish_async", "schema"]
