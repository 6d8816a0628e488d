"""Idempotency keys: stored with their answer in the transaction of the effect (rule E6).

Two transactions with the same key meet at the unique key: the later one waits for the earlier, fails, and is done
anew by ``commit``, when it finds the answer. No state "in progress" is ever visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ackpost.errors import Conflict
from ackpost.ports.operations import Accepted, DeliveriesChanged, Done, Idempotency, JobSaved, Repeated, Result, Stale
from ackpost.store.postgres.ledger import Insert, Ledger

Key = tuple[int, str]

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Result)

IDEMPOTENCY_MS: Final = 24 * 3600 * 1000

_insert = Insert("idempotency", "tenant bigint, key text, created_ms bigint, digest bytea, result bytea")

SELECT_ANSWERS: Final = (
    "SELECT i.tenant, i.key, i.digest, i.result, i.created_ms FROM unnest($1::bigint[], $2::text[]) j (tenant, key)"
    " JOIN idempotency i ON i.tenant = j.tenant AND i.key = j.key"
)


class Answers:
    """The answers given before to the keys of one run of operations, and those given in it."""

    __slots__ = ("_known", "_replaced", "_rows")

    def __init__(self) -> None:
        self._known: dict[Key, tuple[bytes, bytes, int]] = {}
        self._rows: list[tuple[Any, ...]] = []
        self._replaced: list[Key] = []

    async def load(self, ledger: Ledger, keys: Sequence[Idempotency | None]) -> None:
        """Read the answers given before to these keys."""
        wanted = {(key.tenant, key.key) for key in keys if key is not None}
        if wanted:
            for tenant, key, *known in await ledger.all(SELECT_ANSWERS, *zip(*wanted, strict=True)):
                self._known[tenant, key] = tuple(known)

    def repeated(self, key: Idempotency | None) -> Repeated | None:
        """Give the first answer to this key, if there was one.

        Raises: Conflict (idempotency_conflict) when it was used for another request.
        """
        if key is None or (known := self._known.get((key.tenant, key.key))) is None:
            return None
        digest, result, created_ms = known
        if key.now_ms >= created_ms + IDEMPOTENCY_MS:
            return None
        if digest != key.digest:
            text = "Idempotency-Key was used with another request; use a new one."
            raise Conflict(text, code="idempotency_conflict")
        return Repeated(_decoder.decode(result))

    def remember(self, key: Idempotency | None, result: Result) -> None:
        """Keep the answer; what was made due then is not made due again by a repetition."""
        if key is None or isinstance(result, Stale):
            return
        text = _encoder.encode(_lasting(result))
        if (key.tenant, key.key) in self._known:
            self._replaced.append((key.tenant, key.key))
        self._known[key.tenant, key.key] = key.digest, text, key.now_ms
        self._rows.append((key.tenant, key.key, key.now_ms, key.digest, text))

    async def flush(self, ledger: Ledger) -> None:
        """Write the answers given in this run, in the order of their keys."""
        for key in self._replaced:
            await ledger.execute("DELETE FROM idempotency WHERE tenant = $1 AND key = $2", *key)
        self._replaced = []
        await _insert.rows(ledger, sorted(self._rows))
        self._rows = []


def _lasting(result: Result) -> Result:
    """Leave out what only the first reader of a result can use."""
    match result:
        case Accepted():
            return Accepted(result.events)
        case DeliveriesChanged():
            return DeliveriesChanged(result.deliveries)
        case JobSaved():
            return JobSaved(result.job)
        case Done():
            return Done(result.position)
        case _:
            return result
