"""Reading requests: bounded bodies, strict JSON whatever the Content-Type, one value for each query parameter."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import msgspec
from litestar.connection import Request
from litestar.datastructures import State
from litestar.types import Empty, Receive

from ackpost.core.jsondata import decode_json
from ackpost.errors import TooLarge


class ClientGone(Exception):
    """The client closed the connection before its request was complete: nobody waits for an answer."""


async def read_body(receive: Receive, headers: Iterable[tuple[bytes, bytes]], bytes_max: int) -> bytes:
    """Read a request's body.

    Raises: TooLarge as soon as the announced length or what has come exceeds ``bytes_max``; ClientGone.
    """
    for name, value in headers:
        if name == b"content-length":
            # The parser has checked that it is a number, and leaves it the spaces behind it; one of 20 digits is
            # not worth reading either.
            value = value.strip()
            if not value.isdigit() or len(value) > 19 or int(value) > bytes_max:
                raise too_large(bytes_max)
            break
    message: Any = await receive()
    if message["type"] != "http.request":
        raise ClientGone
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        if len(body) > bytes_max:
            raise too_large(bytes_max)
        return body
    return await _read_on(receive, body, bytes_max)


async def _read_on(receive: Receive, first: bytes, bytes_max: int) -> bytes:
    parts = [first]
    size = len(first)
    more = True
    while more:
        if size > bytes_max:
            raise too_large(bytes_max)
        message: Any = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        part = message.get("body", b"")
        parts.append(part)
        size += len(part)
        more = message.get("more_body", False)
    if size > bytes_max:
        raise too_large(bytes_max)
    return b"".join(parts)


def too_large(bytes_max: int) -> TooLarge:
    """Make the refusal of a body that is larger than its call takes."""
    return TooLarge(f"The body of this call may have at most {bytes_max:,} bytes.")


@lru_cache(maxsize=256)
def _decoder(annotation: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(annotation, strict=True)


class StrictRequest(Request[Any, Any, State]):
    """A request whose JSON is read by the type of the handler's ``data``: exactly, without conversions."""

    async def body(self) -> bytes:
        """Give the body, bounded.

        Raises: TooLarge, ClientGone.
        """
        if self._body is Empty:
            kept = self._connection_state.body
            if kept is Empty:
                bytes_max: int = self.app.state.services.options.body_bytes_max
                kept = await read_body(self.receive, self.scope["headers"], bytes_max)
                self._connection_state.body = kept
            self._body = kept
        assert isinstance(self._body, bytes)
        return self._body

    async def json(self) -> Any:
        """Give the body as the type of the handler's ``data``.

        Raises: MalformedJson, InvalidInput, TooLarge, ClientGone.
        """
        if self._json is Empty:
            field = self.route_handler.parsed_data_field
            self._json = decode_json(await self.body(), _decoder(Any if field is None else field.annotation))
        return self._json


NO_QUERY: Final[frozenset[str]] = frozenset()
