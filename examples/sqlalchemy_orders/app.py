"""A small shop: each order is stored together with the event that tells of it, or not at all.

Run it, kill it at any moment and run it again: it goes on behind the last order that was committed. A third of the
orders are declined after all was written, and roll back; neither they nor their events ever were.
"""

from __future__ import annotations

import argparse

from sqlalchemy import Engine, create_engine, event, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from ackpost import outbox

CUSTOMERS = 20


class Base(DeclarativeBase):
    """The tables of this shop."""


class Order(Base):
    """An order that was taken."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    customer: Mapped[str]
    cents: Mapped[int]


class DeclinedError(Exception):
    """The customer's bank said no."""


def open_database(url: str) -> Engine:
    """Connect, and make the tables where they are missing (an application would do so in its migrations)."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def _connected(connection: object, _record: object) -> None:
            connection.execute("PRAGMA journal_mode = WAL")  # type: ignore[attr-defined] # the driver's own connection

    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        outbox.create(session)
    return engine


def take_order(session: Session, number: int) -> None:
    """Take one order, in the transaction that the session is in.

    Raises: DeclinedError.
    """
    order = Order(id=number, customer=f"customer-{number % CUSTOMERS}", cents=100 + number)
    session.add(order)
    outbox.publish(session, "order.created", {"order": number, "cents": order.cents}, key=order.customer)
    session.flush()
    if number % 3 == 0:
        raise DeclinedError


def take_orders(engine: Engine, count: int) -> None:
    """Take orders 1 to ``count``, each in a transaction of its own, behind those that are stored already."""
    with Session(engine) as session:
        last = session.scalar(select(func.max(Order.id))) or 0
    for number in range(last + 1, count + 1):
        try:
            with Session(engine) as session, session.begin():
                take_order(session, number)
        except DeclinedError:
            continue


def main() -> None:
    """Take the orders that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", required=True, help="postgresql://… or sqlite:///…")
    parser.add_argument("--orders", type=int, default=1000)
    arguments = parser.parse_args()
    engine = open_database(arguments.database)
    take_orders(engine, arguments.orders)
    engine.dispose()


if __name__ == "__main__":
    main()
