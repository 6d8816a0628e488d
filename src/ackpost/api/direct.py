"""``POST /v1/events`` without ASGI between: for a server that offers direct calls (rule E19).

A publish whose key, tenant and routes are in memory needs no task, no future and no messages: the server hands its
headers and body over, the writer calls back once it is durable, and one write answers. Everything out of the ordinary
(an Idempotency-Key, a named tenant, a key seen first) goes through ``api.publish``, which answers the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final

from ackpost.api import security
from ackpost.api.problem import MEDIA_TYPE, as_request_error, note_failure, render
from ackpost.api.publish import answer_of
from ackpost.core.jsondata import decode_publish
from ackpost.ports.operations import AcceptedEvent
from ackpost.service.auth import PUBLISHERS
from ackpost.service.context import Services

Answer = Callable[[bytes, bytes], None]
"""Takes status line and headers, each with its line end, and the body. The server adds the body's length."""

PATH: Final = b"/v1/events"

_SPECIAL: Final = frozenset(
    {b"ackpost-tenant", b"idempotency-key", b"transfer-encoding", b"expect", b"upgrade", b"proxy-connection"}
)


def _head(status: int, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    line = b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode())
    return line + b"".join(b"%b: %b\r\n" % header for header in headers)


_ACCEPTED: Final = _head(202, [(b"content-type", b"application/json"), *security.ALL])


class DirectPublish:
    """The direct call; the server asks ``admit`` at the end of the headers, and gives the body to ``take``."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._recall = services.auth.recall
        self._tenants = services.tenants
        self._publisher = services.publisher
        self._body_bytes_max = services.options.body_bytes_max

    def admit(self, headers: Sequence[tuple[bytes, bytes]]) -> int | None:
        """Give the tenant when the call may go this way; None says nothing about the call but that it is not usual.

        ``headers`` have names in small letters.
        """
        authorization = length = None
        for name, value in headers:
            if name == b"authorization":
                authorization = value
            elif name == b"content-length":
                length = value
            elif name in _SPECIAL or (name == b"connection" and value.lower() != b"keep-alive"):
                return None
        # The server's parser has checked that it is a number.
        if length is None or len(length) > 9 or int(length) > self._body_bytes_max:
            return None
        principal = self._recall(authorization)
        if principal is None or principal.role not in PUBLISHERS:
            return None
        tenant = principal.tenant if principal.tenant is not None else self._tenants.recall_default()
        return tenant if tenant is not None and self._publisher.can_start(tenant) else None

    def take(self, tenant: int, body: bytes, answer: Answer) -> None:
        """Publish the body for an admitted tenant; ``answer`` is called once, now or later."""

        def done(accepted: AcceptedEvent | Exception) -> None:
            if isinstance(accepted, Exception):
                self._refuse(accepted, answer)
            else:
                answer(_ACCEPTED, answer_of(accepted, self._services.store.salt))

        try:
            self._publisher.start(tenant, decode_publish(body), done)
        except Exception as error:  # noqa: BLE001 - whatever it is becomes a problem+json answer
            self._refuse(error, answer)

    def _refuse(self, error: Exception, answer: Answer) -> None:
        note_failure(self._services, error, "POST", PATH.decode())
        problem = render(as_request_error(error))
        more = [(name.encode(), value.encode()) for name, value in problem.headers]
        answer(_head(problem.status, [(b"content-type", MEDIA_TYPE.encode()), *security.ALL, *more]), problem.body)
