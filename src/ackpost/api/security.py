"""Headers that every answer has: nothing is sniffed, framed, cached or told to other sites."""

from __future__ import annotations

from typing import Any, Final

CONTENT_POLICY: Final = b"content-security-policy"
STRICT_POLICY: Final = (CONTENT_POLICY, b"default-src 'none'; frame-ancestors 'none'")
NO_STORE: Final = (b"cache-control", b"no-store")
ALWAYS: Final[list[tuple[bytes, bytes]]] = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
]
ALL: Final = [*ALWAYS, STRICT_POLICY, NO_STORE]


def secured(send: Any) -> Any:
    """Wrap ``send`` so that it adds them; a page may bring its own content policy and caching."""

    async def send_secured(message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            names = {name.lower() for name, _ in headers}
            headers.extend(ALWAYS)
            headers.extend(header for header in (STRICT_POLICY, NO_STORE) if header[0] not in names)
            message = {**message, "headers": headers}
        await send(message)

    return send_secured
