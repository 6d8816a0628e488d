"""Builds the request of one attempt: body in the pinned format, signature, headers. No I/O."""

from __future__ import annotations

from typing import Final

from ackpost.core.formats import build_body
from ackpost.core.ids import public_id
from ackpost.core.model import DeliveryRef, Endpoint, EventPayload
from ackpost.core.signing import Signer, unseal
from ackpost.core.target import Target, parse_target
from ackpost.core.times import rfc3339_ms

CONTENT_TYPE: Final = b"content-type: application/json\r\n"


class RequestBuilder:
    """Made once per endpoint and version: everything that does not change between attempts is bytes already.

    Raises: InvalidInput when the stored URL is not one this server may send to; SigningError for a broken secret.
    """

    def __init__(self, endpoint: Endpoint, *, salt: int, user_agent: str, allow_http: bool) -> None:
        self.target: Target = parse_target(endpoint.url, allow_http=allow_http)
        secrets = [(unseal(secret.sealed), secret.expires_at_ms) for secret in endpoint.secrets]
        self._signer = Signer(endpoint.signature, secrets, endpoint.signature_header)
        own = [*endpoint.headers.items(), *((name, unseal(value)) for name, value in endpoint.secret_headers.items())]
        lines = "".join(f"{name}: {value}\r\n" for name, value in own).encode("latin-1")
        self._static = CONTENT_TYPE + f"user-agent: {user_agent}\r\n".encode("latin-1") + lines
        self._salt = salt

    def build(self, ref: DeliveryRef, payload: EventPayload, *, wall_s: int, now_ms: int) -> tuple[bytes, bytes]:
        """Give header lines and body of the next attempt of a delivery.

        ``wall_s`` is the raw wall clock: the signed timestamp. Raises: FormatConflict.
        """
        event_id = public_id("evt", ref.event, self._salt)
        format_name, _, key_field = ref.pin.partition(":")
        body = build_body(
            format_name,
            event_id=event_id,
            event_type=payload.type,
            occurred_at=rfc3339_ms(payload.occurred_at_ms),
            attempted_at=rfc3339_ms(wall_s * 1000),
            key=payload.key,
            sequence=payload.sequence,
            data=payload.data,
            key_field=key_field or None,
        )
        lines = self._static + self._signer.headers(event_id, wall_s, body, now_ms)
        lines += b"ackpost-attempt: %d\r\n" % (ref.number + 1)
        if payload.sequence is not None:
            lines += b"ackpost-sequence: %d\r\n" % payload.sequence
        if ref.trigger == "test":
            lines += b"ackpost-test: true\r\n"
        return lines, body
