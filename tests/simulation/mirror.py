"""SQLite beside the oracle: a world runs on SQLite, and the reference store must say the same of all it is asked."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ackpost.errors import AckpostError
from ackpost.store.sqlite import SqliteStore
from ackpost.testing.reference import ReferenceStore, State
from tests.simulation.history import Violation


class MirroredStore:
    """Implements ``ackpost.ports.store.Store``. A crash leaves the file as it is; ``abandon`` lets go of it."""

    def __init__(self, path: str, state: State, node: str) -> None:
        self._real = SqliteStore(path, inline=True, salt=state.salt)
        self._real._host = node  # another node is another machine: only the lease tells them apart
        self._oracle = ReferenceStore(state)
        self.salt = state.salt

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def read(*args: Any, **given: Any) -> Any:
            return await self._both(name, *args, **given)

        return read

    async def open(self, *, node: str, now_ms: int, lease_ms: int) -> int:
        """Both or none."""
        incarnation: int = await self._both("open", node=node, now_ms=now_ms, lease_ms=lease_ms)
        return incarnation

    async def close(self) -> None:
        """Both."""
        await self._both("close")

    async def commit(self, operations: Sequence[Any]) -> Any:
        """Both, each with its own copy."""
        return await self._both("commit", operations)

    def unlock(self) -> None:
        """Let another one open the file while this one lives."""
        self._real._lock.release()

    def abandon(self) -> None:
        """What the operating system does for a process that died."""
        real = self._real
        ledger, real._ledger = real._ledger, None
        if ledger is not None:
            ledger.connection.close()
        for connection in real._reading:
            connection.close()
        real._reading.clear()
        real._lock.release()

    async def _both(self, name: str, *args: Any, **given: Any) -> Any:
        told, expected = await _result(self._real, name, args, given), await _result(self._oracle, name, args, given)
        if _shown(told) != _shown(expected):
            raise Violation(f"{name}{args}{given}: SQLite says {told}, the reference store {expected}")
        if isinstance(told, BaseException):
            raise told
        return told


async def _result(store: Any, name: str, args: Any, given: Any) -> Any:
    try:
        return await getattr(store, name)(*copy.deepcopy(args), **given)
    except AckpostError as error:
        return error


def _shown(result: Any) -> Any:
    """Errors are the same when their kind and code are."""
    if isinstance(result, AckpostError):
        return type(result).__name__, getattr(result, "code", ""), getattr(result, "errors", ())
    if isinstance(result, list):
        return [_shown(one) for one in result]
    return result
