"""How rows become structs and structs become rows."""

from __future__ import annotations

from typing import Final

import msgspec

from ackpost.core.matching import RESERVED_PREFIX
from ackpost.core.model import Endpoint
from ackpost.store.sqlite.ledger import Insert, Ledger, integers
from ackpost.store.values import Hot, document_of, endpoint_from

HOT_COLUMNS: Final = ", ".join(Hot.__struct_fields__)
NEW_COLUMNS: Final = ", ".join(Hot.__struct_fields__[:11])

insert_new = Insert("delivery", NEW_COLUMNS)
"""First rounds, as accept makes them."""
upsert_hot = Insert(
    "delivery",
    HOT_COLUMNS,
    "ON CONFLICT (position) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in Hot.__struct_fields__ if name != "position"),
)
"""Whole rows, new or changed."""

insert_dead = Insert(
    "dead_letter",
    "position, event_offset, tenant, endpoint, ended_ms, ended_mark, reason, trigger, round, number, code, status_code",
)
insert_ended = Insert(
    "history",
    "position, event_offset, tenant, endpoint, ended_ms, ended_mark, status, reason, trigger, round,"
    " number, code, status_code,"
    " attempt_position, started_ms, duration_ms, detail, body",
)

SELECT_HOT: Final = f"SELECT {HOT_COLUMNS} FROM delivery WHERE position IN (SELECT value FROM carray(?))"  # noqa: S608 - constants only


def load_hot(ledger: Ledger, positions: list[int]) -> dict[int, Hot]:
    """Give the pending ones of these deliveries."""
    if not positions:
        return {}
    return {row[0]: Hot(*row) for row in ledger.execute(SELECT_HOT, (integers(positions),))}


def delete_hot(ledger: Ledger, positions: list[int]) -> None:
    """Take rows out of ``delivery``."""
    if positions:
        ledger.execute("DELETE FROM delivery WHERE position IN (SELECT value FROM carray(?))", (integers(positions),))


def store_hot(ledger: Ledger, hots: list[Hot]) -> None:
    """Write whole rows of ``delivery``."""
    if hots:
        upsert_hot.rows(ledger.connection, [msgspec.structs.astuple(hot) for hot in hots])


def load_endpoint(ledger: Ledger, position: int) -> Endpoint | None:
    """Give an endpoint whatever its tenant."""
    row = ledger.one("SELECT document, rev FROM endpoint WHERE position = ?", (position,))
    return None if row is None else endpoint_from(*row)


def store_endpoint(ledger: Ledger, endpoint: Endpoint) -> None:
    """Write an endpoint, new or changed."""
    ledger.execute(
        "INSERT INTO endpoint"
        " (position, tenant, uid, url, state, circuit, rev, hears, paused_since_ms, paused_total_ms, document)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (position) DO UPDATE SET uid = excluded.uid,"
        " url = excluded.url, state = excluded.state, circuit = excluded.circuit, rev = excluded.rev,"
        " hears = excluded.hears,"
        " paused_since_ms = excluded.paused_since_ms, paused_total_ms = excluded.paused_total_ms,"
        " document = excluded.document",
        (
            endpoint.position, endpoint.tenant, endpoint.uid, endpoint.url, endpoint.state, endpoint.circuit.state,
            endpoint.rev, int(any(type.startswith(RESERVED_PREFIX) for type in endpoint.event_types)),
            endpoint.paused_since_ms, endpoint.paused_total_ms, document_of(endpoint),
        ),
    )  # fmt: skip


PAYLOAD_SQL: Final = (
    "SELECT e.position, e.type, ifnull(e.occurred_at_ms, e.position >> 20), e.data, k.key, e.sequence"
    " FROM event e LEFT JOIN key_state k ON k.id = e.key_id"
    " WHERE e.position IN (SELECT value FROM carray(?)) AND e.data IS NOT NULL"
)
