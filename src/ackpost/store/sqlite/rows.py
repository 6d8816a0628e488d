"""How rows become structs and structs become rows."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from ackpost.core.matching import RESERVED_PREFIX
from ackpost.core.model import ApiKey, DeliveryRef, Endpoint, EndpointVersion, EventPayload, Job, Tenant, Trigger
from ackpost.store.sqlite.ledger import Insert, Ledger, integers

Document = TypeVar("Document", Endpoint, EndpointVersion, Tenant, ApiKey, Job)

TRIGGERS: Final[tuple[Trigger, ...]] = ("schedule", "redeliver", "replay", "recover", "test")
TRIGGER_CODES: Final = {name: code for code, name in enumerate(TRIGGERS)}

DELIVERED: Final = 1
CANCELLED: Final = 3
DISCARDED: Final = 4

_encode = msgspec.json.Encoder().encode
_DECODERS: Final[dict[type, msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(kind) for kind in (Endpoint, EndpointVersion, Tenant, ApiKey, Job)
}

BODY_BYTES_MAX: Final = 16 * 1024
BODY_BYTES_GOOD_MAX: Final = 1024


def document_of(value: msgspec.Struct) -> str:
    """Give the JSON text that is stored for a struct."""
    return _encode(value).decode()


def from_document(kind: type[Document], text: str) -> Document:
    """Read a stored JSON document."""
    value: Document = _DECODERS[kind].decode(text)
    return value


class AttemptDetail(msgspec.Struct, array_like=True, gc=False):
    """What of an attempt is only shown, never searched for; stored as MessagePack."""

    phase: str | None
    detail: str
    phases_ms: tuple[float, float, float, float, float]
    remote_ip: str | None
    version: int
    response_headers: tuple[tuple[str, str], ...]
    truncated: bool
    next_due_ms: int | None
    node: str


encode_detail = msgspec.msgpack.Encoder().encode
decode_detail = msgspec.msgpack.Decoder(AttemptDetail).decode


class Hot(msgspec.Struct, gc=False):
    """A row of ``delivery``; fields in the order of ``HOT_COLUMNS``."""

    position: int
    event_offset: int
    tenant: int
    endpoint: int
    rev: int
    due_ms: int
    age_start_ms: int
    pin: str
    trigger: int
    key_id: int | None
    waiting: int
    klass: int
    round: int
    number: int
    round_attempts: int
    crashes: int
    code: str | None = None
    status_code: int | None = None

    @property
    def event(self) -> int:
        """Position of its event."""
        return self.position - self.event_offset

    def ref(self, payload: EventPayload | None = None) -> DeliveryRef:
        """Give the reference that lanes work with."""
        return DeliveryRef(
            self.position, self.position - self.event_offset, self.tenant, self.endpoint, self.rev, self.klass,
            self.due_ms, self.age_start_ms, self.pin, self.round, self.number, self.round_attempts,
            TRIGGERS[self.trigger], self.crashes, self.key_id is not None, payload,
        )  # fmt: skip


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


def endpoint_from(document: str, rev: int) -> Endpoint:
    """Read an endpoint; its rev stands in a column of its own, so that raising it needs no rewriting."""
    endpoint = from_document(Endpoint, document)
    endpoint.rev = rev
    return endpoint


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
