"""Handing an operation to the writer and taking its result: done now, or by an earlier call with the same key."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ackpost.ports.commit import Committer
from ackpost.ports.operations import Idempotency, Operation, Repeated, Result

R = TypeVar("R")


async def submit(committer: Committer, operation: Operation) -> Result:
    """Give the result; a repeated ``Idempotency-Key`` gives the first call's.

    Raises: what the operation is refused with; Unavailable.
    """
    result = await committer.submit(operation)
    return result.result if isinstance(result, Repeated) else result


async def settle(committer: Committer, operation: Operation, kind: type[R]) -> R:
    """Give the result of an operation that has only one kind of it. Raises: as ``submit``."""
    result = await submit(committer, operation)
    assert isinstance(result, kind)
    return result


def part(idempotency: Idempotency | None, name: str) -> Idempotency | None:
    """Give the key under which a further operation of the same call is kept.

    The separator is a control character, which no caller's key can hold.
    """
    if idempotency is None:
        return None
    return msgspec.structs.replace(idempotency, key=f"{idempotency.key}\x1f{name}")
