"""What callers are shown of the domain's objects (contract §3): public ids, RFC 3339 times, the tenant's uid.

Here: what several resources share, and the views of events, tenants and API keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ackpost.core import ids
from ackpost.core.model import ApiKey, Delivery, Event, HeldBy, Role, Tenant
from ackpost.core.times import rfc3339_ms
from ackpost.ports.operations import AcceptedEvent


def time_text(ms: int | None) -> str | None:
    """Give a time as RFC 3339 text, or null."""
    return None if ms is None else rfc3339_ms(ms)


class DeliveryBrief(msgspec.Struct):
    """A delivery as part of its event."""

    id: str
    endpoint_id: str
    status: str
    attempt_count: int
    next_attempt_at: str | None
    held_by: str | None
    last_error: str | None


class EventView(msgspec.Struct):
    """An event. ``data`` are the published bytes, ``deliveries`` at most 100; both only when one is asked for."""

    id: str
    uid: str | None
    tenant: str
    type: str
    key: str | None
    sequence: int | None
    channels: list[str]
    occurred_at: str
    created_at: str
    metadata: msgspec.Raw
    status: str
    delivery_counts: dict[str, int]
    deliveries: list[DeliveryBrief] | msgspec.UnsetType = msgspec.UNSET
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    data_expired: bool | msgspec.UnsetType = msgspec.UNSET


class AcceptedView(msgspec.Struct, omit_defaults=True):
    """The answer to a publish. ``duplicate``: an event of this uid was accepted before; this is its answer."""

    id: str
    duplicate: bool
    deliveries: int
    sequence: int | None = None


class TenantView(msgspec.Struct):
    """A tenant."""

    id: str
    uid: str
    tenant: str
    name: str
    rate_per_s: float | None
    default_format: str | None
    metadata: dict[str, Any]
    created_at: str


class ApiKeyView(msgspec.Struct):
    """An API key without the key. ``tenant`` null: an operator's."""

    id: str
    name: str
    prefix: str
    role: Role
    tenant: str | None
    created_at: str
    expires_at: str | None
    last_used_at: str | None


class NewApiKeyView(ApiKeyView):
    """A new API key; ``key`` is shown this once. Null when an Idempotency-Key was repeated: the key is not stored."""

    key: str | None


def accepted_view(event: AcceptedEvent, salt: int) -> AcceptedView:
    """Show what an accepted publish came to."""
    event_id = ids.public_id(ids.EVENT, event.position, salt)
    return AcceptedView(event_id, event.duplicate, event.deliveries, event.sequence)


def delivery_brief(delivery: Delivery, held_by: HeldBy | None, next_attempt_ms: int | None, salt: int) -> DeliveryBrief:
    """Show a delivery as part of its event."""
    return DeliveryBrief(
        id=ids.public_id(ids.DELIVERY, delivery.position, salt),
        endpoint_id=ids.public_id(ids.ENDPOINT, delivery.endpoint, salt),
        status=delivery.status,
        attempt_count=delivery.attempt_count,
        next_attempt_at=time_text(next_attempt_ms),
        held_by=held_by,
        last_error=delivery.last_error,
    )


def event_view(event: Event, tenant_uid: str, salt: int) -> EventView:
    """Show an event without its data and deliveries."""
    return EventView(
        id=ids.public_id(ids.EVENT, event.position, salt),
        uid=event.uid,
        tenant=tenant_uid,
        type=event.type,
        key=event.key,
        sequence=event.sequence,
        channels=list(event.channels),
        occurred_at=rfc3339_ms(event.occurred_at_ms),
        created_at=rfc3339_ms(event.created_at_ms),
        metadata=msgspec.Raw(event.metadata or b"{}"),
        status=event.status,
        delivery_counts=event.delivery_counts,
    )


def whole_event_view(
    event: Event, tenant_uid: str, salt: int, deliveries: Iterable[DeliveryBrief] | None, *, with_data: bool
) -> EventView:
    """Show an event with its deliveries and, to whom may see it, its data."""
    view = event_view(event, tenant_uid, salt)
    if deliveries is not None:
        view.deliveries = list(deliveries)
    view.data_expired = event.data_expired
    if with_data and event.data is not None:
        view.data = msgspec.Raw(event.data)
    return view


def tenant_view(tenant: Tenant, salt: int) -> TenantView:
    """Show a tenant."""
    return TenantView(
        id=ids.public_id(ids.TENANT, tenant.position, salt),
        uid=tenant.uid,
        tenant=tenant.uid,
        name=tenant.name,
        rate_per_s=tenant.rate_per_s,
        default_format=tenant.default_format,
        metadata=tenant.metadata,
        created_at=rfc3339_ms(tenant.created_at_ms),
    )


def api_key_view(key: ApiKey, tenant_uid: str | None, salt: int) -> ApiKeyView:
    """Show an API key."""
    return ApiKeyView(
        id=ids.public_id(ids.API_KEY, key.position, salt),
        name=key.name,
        prefix=key.prefix,
        role=key.role,
        tenant=tenant_uid,
        created_at=rfc3339_ms(key.created_at_ms),
        expires_at=time_text(key.expires_at_ms),
        last_used_at=time_text(key.last_used_at_ms),
    )
