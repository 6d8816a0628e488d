"""Rows become batches of a server's API; what it refuses is told apart from what it cannot take now."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from ackpost.cli.client import ApiClient, ApiFailed, Unreachable
from ackpost.cli.relay.source import Waiting
from ackpost.core.limits import Limits
from ackpost.core.outbox import OutboxRow, after_refusal, check_row
from ackpost.errors import RequestError

ROWS_MAX: Final = 500
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024 - 64
DATA_BYTES_MAX: Final = 3 * 1024 * 1024
"""Of one look's rows: with all that stands around the data, a look is one batch, mostly."""

AGE_MARGIN_MS: Final = 3_600_000
_LARGEST: Final = Limits(data_bytes_max=1024 * 1024)
_OF_ROWS: Final = frozenset({400, 409, 413, 422})


class Moved(msgspec.Struct):
    """What became of a look's rows: numbers of the accepted ones, and why others were refused. The rest waits.

    ``trouble``: why it does; ``retry_after_s`` as the server told.
    """

    accepted: list[int] = []
    refused: dict[int, str] = {}
    trouble: str | None = None
    retry_after_s: int | None = None


class _AcceptedEvent(msgspec.Struct):
    id: str
    deliveries: int


class _Accepted(msgspec.Struct):
    events: list[_AcceptedEvent]


class Mover:
    """Publishes rows. ``client`` gives the API as a tenant's; None is that of the key."""

    def __init__(self, client: Callable[[str | None], ApiClient], *, remembered_ms: int) -> None:
        self._client = client
        self._remembered_ms = remembered_ms
        self._clients: dict[str | None, ApiClient] = {}

    def move(self, waiting: Waiting) -> Moved:
        """Publish rows in their order; it may take as long as the server does."""
        moved = Moved()
        groups: dict[str | None, list[OutboxRow]] = {}
        for row in waiting.rows:
            reason = self._fault(row, waiting.now_ms)
            if reason is None:
                groups.setdefault(row.tenant, []).append(row)
            else:
                moved.refused[row.number] = reason
        for tenant, rows in groups.items():
            self._publish(self._of(tenant), rows, moved)
            if moved.trouble is not None:
                break
        return moved

    def _fault(self, row: OutboxRow, now_ms: int) -> str | None:
        """Say why a row cannot be sent at all.

        One that waited longer than the server remembers uids may have been published before this relay was stopped:
        sent once more it would be a second event.
        """
        if now_ms - row.created_ms > self._remembered_ms - AGE_MARGIN_MS:
            days = self._remembered_ms // 86_400_000
            return f"too_old: it waited for {days} days; if it was never published: ackpost relay --again {row.number}"
        try:
            check_row(row, _LARGEST)
        except RequestError as error:
            return f"{error.code}: {error}"
        return None

    def _of(self, tenant: str | None) -> ApiClient:
        if tenant not in self._clients:
            self._clients[tenant] = self._client(tenant)
        return self._clients[tenant]

    def _publish(self, api: ApiClient, rows: list[OutboxRow], moved: Moved) -> None:
        """Publish one tenant's rows. A refused batch goes again without the rows that were named, or in halves."""
        parts = deque(_batches(rows))
        while parts:
            part = parts.popleft()
            body = b'{"events":[%b]}' % b",".join(row.body() for row in part)
            try:
                answer = api.call_bytes("POST", "/v1/events/batch", raw=body)
            except Unreachable as error:
                moved.trouble = str(error)
                return
            except ApiFailed as failed:
                problem = failed.problem
                code = str(problem.get("code", failed.status))
                if failed.status not in _OF_ROWS and code != "unknown_tenant":
                    moved.trouble, moved.retry_after_s = str(failed), failed.retry_after_s
                    return
                errors = [(one["loc"], one["message"]) for one in problem.get("errors", ())]
                detail = str(problem.get("detail", problem.get("title", "refused")))
                refused, again = after_refusal(part, code, detail, errors)
                moved.refused.update(refused)
                parts.extendleft(reversed(again))
            else:
                if not _is_acceptance(answer, len(part)):
                    moved.trouble = f"this is no answer of Ackpost: {answer[:200].decode(errors='replace')!r}"
                    return
                moved.accepted += [row.number for row in part]


def _is_acceptance(answer: bytes, count: int) -> bool:
    """Say whether it is Ackpost that took so many events: another server at that address would lose them."""
    try:
        return len(msgspec.json.decode(answer, type=_Accepted).events) == count
    except msgspec.DecodeError:
        return False


def _batches(rows: Sequence[OutboxRow]) -> list[list[OutboxRow]]:
    batches: list[list[OutboxRow]] = [[]]
    size = 0
    for row in rows:
        length = len(row.body()) + 1
        if batches[-1] and size + length > BATCH_BYTES_MAX:
            batches.append([])
            size = 0
        batches[-1].append(row)
        size += length
    return batches
