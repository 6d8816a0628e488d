"""How rows become structs and structs become rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from ackpost.core.ids import partition_of
from ackpost.core.matching import RESERVED_PREFIX
from ackpost.core.model import Endpoint
from ackpost.store.postgres.ledger import Insert, Ledger
from ackpost.store.values import Ended, Hot, document_of, endpoint_from

HOT_COLUMNS: Final = ", ".join(Hot.__struct_fields__)
_HOT_TYPES: Final = {
    "pin": "text", "code": "text", "trigger": "smallint", "waiting": "smallint", "klass": "smallint",
    "crashes": "smallint", "round": "integer", "number": "integer", "round_attempts": "integer",
    "status_code": "integer",
}  # fmt: skip


def _typed(names: Iterable[str]) -> str:
    return ", ".join(f"{name} {_HOT_TYPES.get(name, 'bigint')}" for name in names)


NEW_TYPED: Final = f"{_typed(Hot.__struct_fields__[:11])}, partition smallint"
"""Columns of first rounds, as accept makes them."""

_upsert_hot = Insert(
    "delivery",
    f"{_typed(Hot.__struct_fields__)}, partition smallint",
    "ON CONFLICT (position, tenant) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in Hot.__struct_fields__ if name not in {"position", "tenant"}),
)
insert_dead = Insert(
    "dead_letter",
    "position bigint, event_offset bigint, tenant bigint, endpoint bigint, ended_ms bigint, ended_mark bigint,"
    " reason text, trigger smallint, round integer, number integer, code text, status_code integer",
)
insert_ended = Insert(
    "history",
    "position bigint, day integer, event_offset bigint, tenant bigint, endpoint bigint, ended_ms bigint,"
    " ended_mark bigint, status smallint, reason text, trigger smallint, round integer, number integer, code text,"
    " status_code integer, attempt_position bigint, started_ms bigint, duration_ms float8, detail bytea, body bytea",
)
NO_ATTEMPT: Final = (None, None, None, None, None)
"""The attempt's columns of a history row that is none."""

SELECT_HOT: Final = f"SELECT {HOT_COLUMNS} FROM delivery WHERE position = ANY($1)"  # noqa: S608 - constants only
LOCK_HOT: Final = f"{SELECT_HOT} ORDER BY position FOR UPDATE"
KEYS_OF_HOT: Final = "SELECT DISTINCT key_id FROM delivery WHERE position = ANY($1) AND key_id IS NOT NULL"
DELETE_HOT: Final = "DELETE FROM delivery WHERE position = ANY($1)"
LOCK_KEYS: Final = "SELECT 1 FROM key_state WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE"


async def lock_keys(ledger: Ledger, keys: Iterable[int]) -> None:
    """Wait until nobody else numbers or wakes these keys; a later statement reads what is pending (rule E4)."""
    wanted = sorted(set(keys))
    if wanted:
        await ledger.all(LOCK_KEYS, wanted)


async def read_hot(ledger: Ledger, positions: Sequence[int]) -> dict[int, Hot]:
    """Give the pending ones of these deliveries, to tell of them."""
    if not positions:
        return {}
    return {row[0]: Hot(*row) for row in await ledger.all(SELECT_HOT, positions)}


async def load_hot(ledger: Ledger, positions: Sequence[int], *, ordered: bool = True) -> dict[int, Hot]:
    """Give the pending ones of these deliveries, to change them: locked, their keys before them.

    ``ordered`` False: none of them is known to keep the order of a key.
    """
    if not positions:
        return {}
    if ordered:
        await lock_keys(ledger, [row[0] for row in await ledger.all(KEYS_OF_HOT, positions)])
    return {row[0]: Hot(*row) for row in await ledger.all(LOCK_HOT, positions)}


async def delete_hot(ledger: Ledger, positions: Sequence[int]) -> None:
    """Take rows out of ``delivery``."""
    if positions:
        await ledger.execute(DELETE_HOT, positions)


async def store_hot(ledger: Ledger, hots: Sequence[Hot]) -> None:
    """Write whole rows of ``delivery``."""
    await _upsert_hot.rows(ledger, [(*msgspec.structs.astuple(hot), partition_of(hot.endpoint)) for hot in hots])


ENDED_COLUMNS: Final = ", ".join(Ended.__struct_fields__[:-1])
SELECT_ENDED: Final = (
    f"SELECT {ENDED_COLUMNS}, status FROM history WHERE position = ANY($1)"  # noqa: S608 - constants only
    f" UNION ALL SELECT {ENDED_COLUMNS}, NULL FROM dead_letter WHERE position = ANY($1)"
)


async def load_ended(ledger: Ledger, positions: Sequence[int]) -> dict[int, Ended]:
    """Give the ended ones of these deliveries, whatever they ended as."""
    if not positions:
        return {}
    return {row[0]: Ended(*row) for row in await ledger.all(SELECT_ENDED, positions)}


# ---- endpoints

LOCK_ENDPOINTS: Final = (
    "SELECT document, rev FROM endpoint WHERE position = ANY($1) ORDER BY position FOR NO KEY UPDATE"
)

_upsert_endpoint = Insert(
    "endpoint",
    "position bigint, tenant bigint, uid text, url text, state text, circuit text, rev bigint, hears boolean,"
    " paused_since_ms bigint, paused_total_ms bigint, created_ms bigint, document text",
    "ON CONFLICT (position, tenant) DO UPDATE SET uid = excluded.uid, url = excluded.url, state = excluded.state,"
    " circuit = excluded.circuit, rev = excluded.rev, hears = excluded.hears,"
    " paused_since_ms = excluded.paused_since_ms, paused_total_ms = excluded.paused_total_ms,"
    " created_ms = excluded.created_ms, document = excluded.document",
)


async def load_endpoints(ledger: Ledger, positions: Iterable[int]) -> dict[int, Endpoint]:
    """Give endpoints whatever their tenant, locked until the commit; those that are gone are left out."""
    wanted = sorted(set(positions))
    if not wanted:
        return {}
    found = (endpoint_from(*row) for row in await ledger.all(LOCK_ENDPOINTS, wanted))
    return {endpoint.position: endpoint for endpoint in found}


async def load_endpoint(ledger: Ledger, position: int) -> Endpoint | None:
    """Give an endpoint whatever its tenant, locked until the commit."""
    return (await load_endpoints(ledger, [position])).get(position)


async def store_endpoints(ledger: Ledger, endpoints: Sequence[Endpoint]) -> None:
    """Write endpoints, new or changed."""
    await _upsert_endpoint.rows(ledger, [_endpoint_row(endpoint) for endpoint in endpoints])


def _endpoint_row(endpoint: Endpoint) -> tuple[Any, ...]:
    return (
        endpoint.position, endpoint.tenant, endpoint.uid, endpoint.url, endpoint.state, endpoint.circuit.state,
        endpoint.rev, any(type.startswith(RESERVED_PREFIX) for type in endpoint.event_types),
        endpoint.paused_since_ms, endpoint.paused_total_ms, endpoint.created_at_ms, document_of(endpoint),
    )  # fmt: skip
