"""Every exception Ackpost raises on purpose.

    AckpostError
    ├── ConfigError                 the process cannot start like this; one clear line
    ├── RequestError                a caller asked for something that is refused (4xx/5xx with a stable ``code``)
    │   ├── MalformedJson           400 malformed_json
    │   ├── Unauthenticated         401 unauthenticated
    │   ├── Forbidden               403 forbidden
    │   ├── NotFound                404 not_found | unknown_tenant
    │   ├── MethodNotAllowed        405 method_not_allowed
    │   ├── Conflict                409 idempotency_conflict | uid_conflict | sequence_not_rising | invalid_state
    │   │                               | already_exists
    │   ├── DataExpired             410 data_expired
    │   ├── TooLarge                413 too_large
    │   ├── InvalidInput            422 invalid | tenant_required | selector_required | blocked_target
    │   │                               | too_many_deliveries
    │   ├── RateLimited             429 rate_limited
    │   └── Unavailable             503 overloaded | storage_full | starting | outcome_unknown
    ├── StoreError                  the store could not do its work
    │   ├── StoreFull               no space left (503 storage_full)
    │   ├── StoreBusy               passing; the same call may be repeated
    │   ├── StoreOutcomeUnknown     went away during the commit: it may or may not be durable
    │   ├── StoreLocked             another server owns this database
    │   │   └── StoreFenced         other nodes declared this one dead: it may come back
    │   ├── StoreBroken             a flush to the disk failed: only a new start makes sure of what is there
    │   ├── StoreCorrupt            the database file is damaged
    │   └── SchemaMismatch          schema newer or older than this code
    ├── SigningError                a secret or key that cannot be used
    └── FormatConflict              data that cannot be put into the endpoint's format

A failed delivery attempt is a value (``core.outcome.Outcome``), never an exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class AckpostError(Exception):
    """Root of all errors raised by this package."""


class ConfigError(AckpostError):
    """A setting, file or environment with which the process must not start."""


class FieldError(NamedTuple):
    """One refused input: where it is (``("body", "events", 3, "type")``) and what would be right."""

    loc: tuple[str | int, ...]
    message: str


class RequestError(AckpostError):
    """A refusal with an HTTP status and a stable machine-readable code (contract §2)."""

    status: int = 400
    code: str = "invalid"

    def __init__(
        self,
        detail: str,
        *,
        code: str | None = None,
        errors: Sequence[FieldError] = (),
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        if code is not None:
            self.code = code
        self.errors = tuple(errors)
        self.retry_after_s = retry_after_s


class MalformedJson(RequestError):
    """The body is not JSON: syntax, bad UTF-8, NaN, or nested deeper than 64."""

    status = 400
    code = "malformed_json"


class Unauthenticated(RequestError):
    """No key, or one that is unknown, expired or revoked."""

    status = 401
    code = "unauthenticated"


class Forbidden(RequestError):
    """A known key that may not do this."""

    status = 403
    code = "forbidden"


class NotFound(RequestError):
    """No such object for this tenant (another tenant's object looks the same)."""

    status = 404
    code = "not_found"


class MethodNotAllowed(RequestError):
    """The path exists, the method does not."""

    status = 405
    code = "method_not_allowed"


class Conflict(RequestError):
    """The request contradicts what is stored; ``code`` says how."""

    status = 409
    code = "invalid_state"


class DataExpired(RequestError):
    """The event's data was removed by retention or on request."""

    status = 410
    code = "data_expired"


class TooLarge(RequestError):
    """The body exceeds its limit; refused before it is read whole."""

    status = 413
    code = "too_large"


class InvalidInput(RequestError):
    """Well-formed input with a wrong value; ``errors`` names each field."""

    status = 422
    code = "invalid"


class RateLimited(RequestError):
    """The tenant's or call's rate is used up for now."""

    status = 429
    code = "rate_limited"


class Unavailable(RequestError):
    """Not now: repeat after ``retry_after_s``."""

    status = 503
    code = "overloaded"


class StoreError(AckpostError):
    """The store could not do its work; nothing was acknowledged."""


class StoreBusy(StoreError):
    """Another process holds the database for longer than the busy timeout."""


class StoreFull(StoreError):
    """No space left where the database lies."""


class StoreOutcomeUnknown(StoreError):
    """The database went away during a commit: what was in it may or may not be durable."""


class StoreLocked(StoreError):
    """Another live server owns this database."""


class StoreFenced(StoreLocked):
    """Other nodes declared this one dead, because its lease ran out: nothing of the commit was stored."""


class StoreBroken(StoreError):
    """The disk did not keep what was to be flushed; nothing more may be acknowledged before the database is reopened.

    Systems forget a failed flush: the next one may succeed although what the first one was for is not on the disk.
    """


class StoreCorrupt(StoreError):
    """The database is not one, or is damaged."""


class SchemaMismatch(StoreError):
    """The schema is not the one this code works with."""


class SigningError(AckpostError):
    """A secret or key that cannot sign or verify; the text says why, never the secret."""


class FormatConflict(AckpostError):
    """``data`` cannot be put into the format ``flat``."""
