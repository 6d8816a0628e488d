"""What stands in a row, whichever database it lies in: codes, documents, and the structs of rows. No SQL."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from ackpost.core.model import ApiKey, DeliveryRef, Endpoint, EndpointVersion, EventPayload, Job, Tenant, Trigger

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


def endpoint_from(document: str, rev: int) -> Endpoint:
    """Read an endpoint; its rev stands in a column of its own, so that raising it needs no rewriting."""
    endpoint = from_document(Endpoint, document)
    endpoint.rev = rev
    return endpoint


def api_key_from(document: str, last_used_ms: int | None) -> ApiKey:
    """Read a key; its last use stands in a column of its own."""
    key = from_document(ApiKey, document)
    key.last_used_at_ms = last_used_ms
    return key


class Ended(msgspec.Struct, gc=False):
    """An ended delivery of either table; ``status`` None: dead. Fields in the order of the stores' columns."""

    position: int
    event_offset: int
    tenant: int
    endpoint: int
    round: int
    number: int
    code: str | None
    status_code: int | None
    ended_mark: int | None
    reason: str | None
    trigger: int
    status: int | None = None

    @property
    def event(self) -> int:
        """Position of its event."""
        return self.position - self.event_offset
