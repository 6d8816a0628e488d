"""How services hand work to the one writer. The adapter is ``engine.writer``."""

from __future__ import annotations

from typing import Protocol

from ackpost.ports.operations import Operation, Repeated, Result


class Committer(Protocol):
    """Groups operations into durable commits (rule E6)."""

    async def submit(self, operation: Operation) -> Result | Repeated:
        """Wait until the operation is durable and give its result.

        Raises: the operation's RequestError; Unavailable (overloaded, storage_full, outcome_unknown, starting) with
        ``retry_after_s``.
        """
