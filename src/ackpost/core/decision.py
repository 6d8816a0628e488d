"""What follows from an attempt, as data: ``core.decide`` makes it, a store writes it, tests read it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ackpost.core.model import CLOSED, Circuit, Trigger
from ackpost.core.outcome import Outcome

Verdict = Literal["delivered", "dead", "retry", "again", "discarded"]
"""``discarded``: a failed test delivery.

``again``: nothing was judged (our own fault); the delivery stays as it is, due
at ``due_ms``, no attempt used."""


class Announcement(msgspec.Struct):
    """An operational event (``ackpost.…``) that goes, in the same commit, to the tenant's endpoints that name it.

    ``about`` is the endpoint it tells of: it never goes to that one.
    """

    type: str
    about: int
    data: dict[str, Any]


class EndpointChange(msgspec.Struct):
    """What an attempt changes of its endpoint; None leaves a field. Stored in the commit of the result (rule E17)."""

    circuit: Circuit | None = None
    retry_after_until_ms: int | None = None
    first_failure_ms: int | None = None
    last_failure_ms: int | None = None
    failing_announced: bool | None = None
    clear_failing: bool = False
    disable_reason: Literal["gone", "failing"] | None = None


class Decision(msgspec.Struct):
    """Every consequence of one attempt (or of ending a delivery without one: ``outcome`` None).

    ``round`` and ``number`` guard the write: it holds only if the delivery is still in that round and had
    ``number - 1`` attempts (rule E6). ``number`` is unchanged when no attempt was used (``again`` or outcome None).
    ``attempt_shown`` False: not recorded as attempt. ``due_ms`` for retry and again.
    """

    delivery: int
    event: int
    tenant: int
    endpoint: int
    round: int
    number: int
    verdict: Verdict
    reason: str | None = None
    due_ms: int | None = None
    trigger: Trigger = "schedule"
    crashes: int = 0
    outcome: Outcome | None = None
    started_at_ms: int = 0
    ended_at_ms: int = 0
    version: int = 1
    ordered: bool = False
    hold: bool = False
    endpoint_change: EndpointChange | None = None
    announcements: tuple[Announcement, ...] = ()
    circuit: Circuit = CLOSED
