"""``POST /v1/events`` and ``/v1/events/batch``: the hot calls, as bare ASGI.

They stand before Litestar's router because each publish must cost little more than reading its bytes (rule E19). What
they take and answer is described in the same OpenAPI document (``api.openapi``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from ackpost.api import security
from ackpost.api.idempotency import idempotency_of
from ackpost.api.params import check_query
from ackpost.api.problem import MEDIA_TYPE, as_request_error, note_failure, render
from ackpost.api.request import NO_QUERY, ClientGone, read_body
from ackpost.core.ids import EVENT, public_id
from ackpost.core.jsondata import decode_batch, decode_publish
from ackpost.errors import Forbidden
from ackpost.ports.operations import AcceptedEvent, Idempotency
from ackpost.service.auth import PUBLISHERS
from ackpost.service.context import BATCH_BYTES_MAX, Services

Headers = Sequence[tuple[bytes, bytes]]

ANSWER_HEADERS: Final[list[tuple[bytes, bytes]]] = [
    (b"content-type", b"application/json"),
    *security.ALL,
]

_ACCEPTED: Final = 202


class PublishEndpoint:
    """The two calls that take events."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._auth = services.auth
        self._tenants = services.tenants
        self._publisher = services.publisher
        self._body_bytes_max = services.options.body_bytes_max
        self.paths: dict[str, Callable[[Any, Any, Any], Awaitable[None]]] = {
            "/v1/events": self.one,
            "/v1/events/": self.one,
            "/v1/events/batch": self.batch,
            "/v1/events/batch/": self.batch,
        }

    async def one(self, scope: Any, receive: Any, send: Any) -> None:
        """Accept one event."""
        try:
            headers: Headers = scope["headers"]
            tenant, idempotency_key = await self._admit(scope, headers)
            body = await read_body(receive, headers, self._body_bytes_max)
            idempotency = None if idempotency_key is None else self._idempotency(scope, tenant, idempotency_key, body)
            accepted = await self._publisher.publish(tenant, decode_publish(body), idempotency)
            answer = answer_of(accepted, self._services.store.salt)
        except ClientGone:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is becomes a problem+json answer
            await self._refuse(error, "/v1/events", send)
            return
        await _send(send, answer)

    async def batch(self, scope: Any, receive: Any, send: Any) -> None:
        """Accept many events, all or none."""
        try:
            headers: Headers = scope["headers"]
            tenant, idempotency_key = await self._admit(scope, headers)
            body = await read_body(receive, headers, BATCH_BYTES_MAX)
            idempotency = None if idempotency_key is None else self._idempotency(scope, tenant, idempotency_key, body)
            accepted = await self._publisher.publish_batch(tenant, decode_batch(body), idempotency)
            salt = self._services.store.salt
            answer = b'{"events":[%b]}' % b",".join([answer_of(event, salt) for event in accepted])
        except ClientGone:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is becomes a problem+json answer
            await self._refuse(error, "/v1/events/batch", send)
            return
        await _send(send, answer)

    async def _admit(self, scope: Any, headers: Headers) -> tuple[int, bytes | None]:
        """Check key, role, tenant and query; gives the tenant and the Idempotency-Key.

        Raises: Unauthenticated, Forbidden, NotFound, InvalidInput.
        """
        authorization: bytes | None = None
        tenant_name: bytes | None = None
        idempotency_key: bytes | None = None
        for name, value in headers:
            if name == b"authorization":
                authorization = value
            elif name == b"ackpost-tenant":
                tenant_name = value
            elif name == b"idempotency-key":
                idempotency_key = value
        principal = self._auth.recall(authorization) or await self._auth.principal(authorization)
        if principal.role not in PUBLISHERS:
            raise Forbidden(f"A key of role {principal.role} may not publish.")
        if scope["query_string"]:
            check_query(scope["query_string"], NO_QUERY)
        if tenant_name is None:
            tenant = principal.tenant if principal.tenant is not None else self._tenants.recall_default()
            # A tenant that was looked up lately has its publish rate in memory; any other goes the long way.
            if tenant is not None and self._tenants.is_recalled(tenant):
                return tenant, idempotency_key
        named = None if tenant_name is None else tenant_name.decode("latin-1")
        meant = await self._tenants.meant(principal, named, "one")
        assert meant is not None  # "one" refuses what leaves the tenant open
        await self._tenants.by_position(meant)
        return meant, idempotency_key

    def _idempotency(self, scope: Any, tenant: int, key: bytes, body: bytes) -> Idempotency | None:
        now_ms = self._services.clock.now_ms()
        path = scope["path"].rstrip("/")
        return idempotency_of(key, tenant=tenant, method="POST", path=path, body=body, now_ms=now_ms)

    async def _refuse(self, error: Exception, path: str, send: Any) -> None:
        note_failure(self._services, error, "POST", path)
        problem = render(as_request_error(error))
        headers = [
            *security.ALL,
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(len(problem.body)).encode()),
            *((name.encode(), value.encode()) for name, value in problem.headers),
        ]
        await send({"type": "http.response.start", "status": problem.status, "headers": headers})
        await send({"type": "http.response.body", "body": problem.body})


def answer_of(event: AcceptedEvent, salt: int) -> bytes:
    """Write an ``AcceptedView``."""
    sequence = "" if event.sequence is None else f',"sequence":{event.sequence}'
    duplicate = "true" if event.duplicate else "false"
    event_id = public_id(EVENT, event.position, salt)
    return f'{{"id":"{event_id}","duplicate":{duplicate},"deliveries":{event.deliveries}{sequence}}}'.encode()


async def _send(send: Any, answer: bytes) -> None:
    headers = [*ANSWER_HEADERS, (b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": _ACCEPTED, "headers": headers})
    await send({"type": "http.response.body", "body": answer})
