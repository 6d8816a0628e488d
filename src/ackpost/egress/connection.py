"""One HTTP/1.1 connection: writes a POST in one piece, reads its answer raw, capped and within its deadline.

The rule of the outcome: once the header of the final answer is complete its status decides, whatever follows
(contract §5). Before that, what goes wrong has its own code. A connection is used again only after an answer that
ended where it said, with nothing behind it, to a request that was written whole.
"""

from __future__ import annotations

import asyncio
import select
import ssl
from typing import Final, NoReturn, Protocol, cast

import httptools

from ackpost.core.outcome import (
    BAD_RESPONSE,
    RESET,
    RESPONSE_TOO_LARGE,
    TIMEOUT,
    TLS_ERROR,
    Outcome,
    classify_status,
)
from ackpost.egress.failures import AttemptFailed, tls_detail
from ackpost.egress.limits import (
    ANSWER_BYTES_MAX,
    BODY_BYTES_KEPT_MAX,
    HEADER_BYTES_MAX,
    HEADERS_KEPT_MAX,
    HEADERS_PARSED_MAX,
    INTERIM_ANSWERS_MAX,
)
from ackpost.egress.request import Request

_REUSE_MARGIN_S: Final = 1.0
_LATE_S: Final = 0.1
"""A deadline that is told so much too late says nothing of the other side."""


class Owner(Protocol):
    """What a connection reports to: the pool."""

    def released(self, connection: Connection) -> None:
        """The connection may be used again."""

    def lost(self, connection: Connection) -> None:
        """The connection is closed; called once."""

    def unusable(self, connection: Connection) -> None:
        """An idle connection is closing."""


class _Refused(Exception):
    """Stops the parser in the middle of its input; the connection knows why."""


class Connection(asyncio.Protocol):
    """A connection of the pool, idle or with one request.

    Invariant: ``_request`` is None exactly while idle, closing or not yet started.
    """

    __slots__ = (
        "_body",
        "_body_bytes",
        "_failure",
        "_first_byte_at",
        "_headers",
        "_idle_since",
        "_idle_s",
        "_interim",
        "_keep_alive",
        "_loop",
        "_owner",
        "_parser",
        "_poller",
        "_request",
        "_room",
        "_status",
        "_timer",
        "_timer_at",
        "_unsent",
        "_whole",
        "closing",
        "key",
        "remote_ip",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, owner: Owner, key: str, loop: asyncio.AbstractEventLoop, idle_s: float) -> None:
        self._owner = owner
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._request: Request | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._idle_since = -1.0
        self._idle_s = idle_s
        self._failure: AttemptFailed | None = None
        self._unsent = False
        self._poller: select.poll | None = None
        self.key = key
        self.closing = False
        self.remote_ip: str | None = None

    # --- used by the pool -------------------------------------------------------------------------------------------

    def start(self, request: Request, now: float) -> None:
        """Write ``request`` and arm its deadline. The connection is idle or new, and not closing."""
        self._request = request
        request.connection = self
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._body_bytes = self._interim = self._status = 0
        self._room = HEADER_BYTES_MAX
        self._first_byte_at = -1.0
        self._whole = self._keep_alive = False
        request.written_at = now
        deadline = request.deadline
        if self._timer is None or self._timer_at > deadline:
            self._arm(deadline)
        body = request.body
        self.transport.write(
            b"%baccept-encoding: identity\r\ncontent-length: %d\r\n\r\n%b" % (request.head, len(body), body)
        )
        request.body = b""  # never written again: while the answer is awaited nobody holds it

    def is_fresh(self, now: float) -> bool:
        """Say whether an idle connection may carry another request: not too old, and nothing came from the other side.

        An end of stream may already be here though the event loop has not told yet.
        """
        if now - self._idle_since >= self._idle_s or self.transport.is_closing():
            return False
        return not self._has_unread()

    def _has_unread(self) -> bool:
        return self._poller is not None and bool(self._poller.poll(0))

    def early_failure(self) -> AttemptFailed | None:
        """Say why a new connection is of no use, though it stood: it was lost, or the server spoke first."""
        if not self.closing:
            return None
        return self._failure or AttemptFailed(RESET, _LOST["send"], phase="send", remote_ip=self.remote_ip)

    def close(self) -> None:
        """Close in good order what is idle or has ended."""
        self.closing = True
        self.transport.close()

    def abort(self) -> None:
        """Close at once; a request under way is dropped without an outcome."""
        self._request = None
        self.closing = True
        self.transport.abort()

    # --- called by the event loop -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (with TLS the plain one, until the handshake is over)."""
        self.attach(cast("asyncio.Transport", transport))

    def attach(self, transport: asyncio.Transport) -> None:
        """Use this transport, and hear of every byte that waits for the other side to read."""
        self.transport = transport
        transport.set_write_buffer_limits(high=1, low=0)  # 0 and 0 would call pause for nothing
        sock = transport.get_extra_info("socket")
        if sock is not None:
            self._poller = select.poll()
            self._poller.register(sock.fileno(), select.POLLIN)

    def pause_writing(self) -> None:
        """A part of the request is not sent yet."""
        self._unsent = True

    def resume_writing(self) -> None:
        """The request is sent."""
        self._unsent = False

    def data_received(self, data: bytes) -> None:
        """Feed the parser, never more than its caps allow."""
        if self._request is None:
            self._unsolicited()
            return
        if self._first_byte_at < 0:
            self._first_byte_at = self._loop.time()
        try:
            self._room -= len(data)
            if self._room >= 0:
                self._parser.feed_data(data)
            else:
                self._feed_capped(data)
        except (httptools.HttpParserError, _Refused) as error:
            self._on_parser_error(error)
        else:
            if self._whole:
                self._answered(reusable=self._keep_alive)

    def eof_received(self) -> None:
        """The other side will send no more: the connection closes, and an answer without framing is complete."""
        if self._request is None:
            self._retire()
        elif self._status:
            self._settle(truncated=self._has_framing(), detail="the answer ended before its body did")
        self.closing = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the pool, and give the outcome if there is none yet."""
        self._retire()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        phase = self._phase() if self._request is not None else "send"
        if isinstance(exc, ssl.SSLError):
            failure = AttemptFailed(TLS_ERROR, tls_detail(exc), phase=phase, remote_ip=self.remote_ip)
        else:
            failure = AttemptFailed(RESET, _LOST[phase], phase=phase, remote_ip=self.remote_ip)
        self._owner.lost(self)
        if self._request is None:
            self._failure = self._failure or failure
        elif self._status:
            cut = exc is not None or self._has_framing()
            self._settle(truncated=cut, detail="the connection was lost while the body was read")
        else:
            self._fail(failure)

    # --- called by the parser ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Refuse bytes behind a complete answer: nobody asked for them."""
        if self._whole:
            raise _Refused

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header; trailers (after the body) are dropped."""
        headers = self._headers
        if not self._status:
            if len(headers) >= HEADERS_PARSED_MAX:
                self._refuse(RESPONSE_TOO_LARGE, f"the answer has more than {HEADERS_PARSED_MAX} headers")
            headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Skip interim answers; the first other one is final, and its status decides."""
        status = self._parser.get_status_code()
        if status >= 200:
            self._status = status
            self._room += ANSWER_BYTES_MAX - HEADER_BYTES_MAX
        elif status == 101 or status < 100:
            self._refuse(BAD_RESPONSE, f"the answer's status {status} is not one of a POST")
        else:
            self._interim += 1
            if self._interim > INTERIM_ANSWERS_MAX:
                self._refuse(BAD_RESPONSE, f"more than {INTERIM_ANSWERS_MAX} interim answers")

    def on_body(self, data: bytes) -> None:
        """Keep the first part."""
        if self._body_bytes < BODY_BYTES_KEPT_MAX:
            self._body.append(data)
        self._body_bytes += len(data)

    def on_message_complete(self) -> None:
        """The answer ended where it said, or an interim one did."""
        if self._status:
            self._keep_alive = self._parser.should_keep_alive()
            self._whole = True
        else:
            self._headers.clear()

    # --- reading ----------------------------------------------------------------------------------------------------

    def _feed_capped(self, data: bytes) -> None:
        """Feed the part of the last chunk that the cap lets in. The header has a cap of its own within the answer's."""
        fits = self._room + len(data)
        if not self._header_is_complete():
            self._room = 0
            self._parser.feed_data(data[:fits])
            if not self._header_is_complete():
                self._refuse(RESPONSE_TOO_LARGE, f"the answer's header has more than {HEADER_BYTES_MAX} bytes")
            if self._whole:
                raise _Refused
            data = data[fits:]
            fits = self._room
            self._room -= len(data)
        self._parser.feed_data(data[:fits])
        if self._room < 0:
            if self._whole:
                raise _Refused
            self._settle(truncated=True, detail="the body was read up to the cap")

    def _header_is_complete(self) -> bool:
        return self._status != 0

    def _refuse(self, code: str, detail: str) -> NoReturn:
        self._failure = AttemptFailed(code, detail, phase="read", remote_ip=self.remote_ip)
        raise _Refused

    def _on_parser_error(self, error: Exception) -> None:
        if self._whole:
            self._answered(reusable=False)
        elif self._status:
            self._settle(truncated=True, detail="the answer's body is malformed")
        elif self._failure is not None:
            self._fail(self._failure)
        else:
            detail = f"not an HTTP/1.1 answer ({type(error).__name__})"
            self._fail(AttemptFailed(BAD_RESPONSE, detail, phase="read", remote_ip=self.remote_ip))

    def _unsolicited(self) -> None:
        """Bytes before any request, or between two: this is no HTTP server, or a confused one."""
        if not self.closing:
            detail = "the server spoke before it was asked"
            self._failure = AttemptFailed(BAD_RESPONSE, detail, phase="send", remote_ip=self.remote_ip)
            self._retire()
            self.transport.abort()

    def _has_framing(self) -> bool:
        """Say whether the answer said where its body ends (else it ends with the connection)."""
        return any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in self._headers)

    # --- ending -----------------------------------------------------------------------------------------------------

    def _retire(self) -> None:
        """Take no further request."""
        if not self.closing:
            self.closing = True
            self._owner.unusable(self)

    def _phase(self) -> str:
        if self._first_byte_at >= 0:
            return "read"
        return "send" if self._unsent else "wait"

    def _answered(self, *, reusable: bool) -> None:
        """The whole answer is here."""
        request = self._request
        assert request is not None
        outcome = self._outcome(request, truncated=False, detail="")
        self._request = None
        if self._unsent:
            self.abort()
        elif reusable and not self.closing:
            if self._idle_since < 0:
                self._heed_keep_alive()
            self._idle_since = self._loop.time()
            self._owner.released(self)
        else:
            self.close()
        request.finish(outcome)

    def _settle(self, *, truncated: bool, detail: str) -> None:
        """The status is known but the connection cannot go on."""
        request = self._request
        assert request is not None
        outcome = self._outcome(request, truncated=truncated, detail=detail if truncated else "")
        self.abort()
        request.finish(outcome)

    def _fail(self, failure: AttemptFailed) -> None:
        request = self._request
        assert request is not None
        waited_ms, read_ms = self._split_ms(request)
        self.abort()
        request.fail(failure, self._loop.time(), waited_ms, read_ms)

    def _outcome(self, request: Request, *, truncated: bool, detail: str) -> Outcome:
        status = self._status
        headers = self._headers
        body = b"".join(self._body)
        if len(body) > BODY_BYTES_KEPT_MAX or self._body_bytes > BODY_BYTES_KEPT_MAX:
            body, truncated = body[:BODY_BYTES_KEPT_MAX], True
        waited_ms, read_ms = self._split_ms(request)
        return Outcome(
            code=classify_status(status),
            status_code=status,
            detail=detail,
            duration_ms=request.elapsed_ms(self._loop.time()),
            phases_ms=(request.dns_ms, request.connect_ms, request.tls_ms, waited_ms, read_ms),
            remote_ip=self.remote_ip,
            response_headers=tuple(
                [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers[:HEADERS_KEPT_MAX]]
            ),
            response_body=body,
            truncated=truncated,
            retry_after=_only_retry_after(headers) if status in (429, 503) else None,
        )

    def _split_ms(self, request: Request) -> tuple[float, float]:
        """Give the time until the first byte of the answer, and from there until now."""
        now = self._loop.time()
        first = self._first_byte_at if self._first_byte_at >= 0 else now
        return (first - request.written_at) * 1000, (now - first) * 1000

    # --- time -------------------------------------------------------------------------------------------------------

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        """One timer serves deadlines and the idle limit: it is moved when it fires, not at every request."""
        self._timer = None
        now = self._loop.time()
        request = self._request
        if self.closing:
            return
        if request is None:
            ends = self._idle_since + self._idle_s
            if now >= ends:
                self._retire()
                self.close()
            else:
                self._arm(ends)
        elif now < request.deadline:
            self._arm(request.deadline)
        elif now - request.deadline > _LATE_S and self._has_unread():
            # The process stood still meanwhile. An answer that came in time must not be taken for none.
            request.deadline = now + _LATE_S
            self._arm(request.deadline)
        elif self._status:
            self._settle(truncated=True, detail="the time for the attempt ended while the body was read")
        else:
            detail = "the time for the attempt ended before the answer's header"
            self._fail(AttemptFailed(TIMEOUT, detail, phase=self._phase(), remote_ip=self.remote_ip))

    def _heed_keep_alive(self) -> None:
        """Stop using the connection before the server said it would close it (``Keep-Alive: timeout=5``)."""
        for name, value in self._headers:
            if name.lower() == b"keep-alive":
                for part in value.split(b","):
                    key, _, number = part.strip().partition(b"=")
                    if key.lower() == b"timeout" and number.isdigit() and len(number) < 9:
                        self._idle_s = min(self._idle_s, int(number) - _REUSE_MARGIN_S)


_LOST: Final = {
    "send": "the connection was lost before the request was written whole",
    "wait": "the connection was lost before an answer came",
    "read": "the connection was lost in the answer's header",
}


def _only_retry_after(headers: list[tuple[bytes, bytes]]) -> str | None:
    values = [value for name, value in headers if name.lower() == b"retry-after"]
    return values[0].decode("latin-1") if len(values) == 1 else None
