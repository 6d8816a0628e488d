"""How services hand work to the one writer. The adapter is ``engine.writer``."""

from __future__ import annotations

from typing import Protocol

from ackpost.ports.operations import Operation, Repeated, Result


class Waiter(Protocol):
    """Who waits for an operation's end. A future is one; what is called for each event does without."""

    def done(self) -> bool:
        """Whether nobody waits any more."""

    def set_result(self, result: Result | Repeated, /) -> None:
        """The operation is durable."""

    def set_exception(self, error: Exception, /) -> None:
        """It was refused or failed: the operation's RequestError, or Unavailable."""


class Committer(Protocol):
    """Groups operations into durable commits (rule E6)."""

    async def submit(self, operation: Operation) -> Result | Repeated:
        """Wait until the operation is durable and give its result.

        Raises: the operation's RequestError; Unavailable (overloaded, storage_full, outcome_unknown, starting) with
        ``retry_after_s``.
        """

    def queue(self, operation: Operation, waiter: Waiter) -> None:
        """Tell ``waiter`` once the operation is durable or has failed. Raises: Unavailable, and tells nobody then."""
