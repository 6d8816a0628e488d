"""What the worlds must show between them: a quiet world proves nothing."""

from __future__ import annotations

from collections import Counter
from typing import get_args

from ackpost.core.decision import Verdict
from ackpost.core.model import DEAD_REASONS
from ackpost.core.outcome import DELIVERED, ERROR_CODES
from ackpost.ports import operations as ops
from tests.simulation.operators import Operator
from tests.simulation.receivers import DIALS

DELIVERIES = (
    "new > pending", "new > waiting", "waiting > pending", "waiting > dead", "waiting > cancelled", "pending > waiting",
    "pending > delivered", "pending > dead", "pending > cancelled", "pending > discarded", "delivered > pending",
    "dead > pending", "dead > waiting", "dead > delivered", "dead > discarded", "cancelled > pending",
    "cancelled > delivered", "delivered > removed", "dead > removed",
)  # fmt: skip
ENDPOINTS = (
    "new > enabled", "enabled > paused requested", "paused > enabled", "enabled > disabled requested",
    "enabled > disabled gone", "disabled > enabled", "enabled > deleted",
)  # fmt: skip
CIRCUITS = (
    "closed > open", "open > half-open", "half-open > open", "half-open > ramping", "ramping > closed",
    "ramping > open",
)  # fmt: skip
FAULTS = (
    "busy", "full", "broken_before", "unknown_before", "unknown_after", "flush_failed", "crash_before_commit",
    "crash_after_commit", "read_fault", "crash", "freeze", "takeover", "clock set back", "clock set forward",
    "slow store", "poison",
)  # fmt: skip
WIRE = (
    "new", "reused", "status", "drip", "drip:header", "hang", "hang:header", "hang:body", "hang:before", "unread",
    "reset", "reset:header", "reset:body", "reset:before", "close", "close:header", "close:body", "close:before",
    "close:after", "early", "dropped", "vanish:after", "garbage", "garbage:body", "garbage:before", "twolengths",
    "headers", "header-bytes", "unframed", "old", "short", "long", "interim", "endless", "endless:length",
    "endless:trailer",
)  # fmt: skip
REFUSALS = ("overloaded", "storage_full", "outcome_unknown", "invalid_state", "data_expired", "unknown_tenant")

EXPECTED = (
    *(f"verdict {verdict}" for verdict in get_args(Verdict) if verdict != "dead"),
    *(f"dead {reason}" for reason in DEAD_REASONS),
    *(f"code {code}" for code in (DELIVERED, *ERROR_CODES)),
    *(f"delivery {one}" for one in DELIVERIES),
    "hold made", "hold released",
    *(f"endpoint {one}" for one in ENDPOINTS),
    *(f"circuit {one}" for one in CIRCUITS),
    *(f"fault {one}" for one in FAULTS),
    *(f"wire {one}" for one in WIRE),
    *(f"dial {one}" for one in DIALS if one),
    *(f"operation {one.__name__}" for one in get_args(ops.Operation)),
    *(f"reply {one.__name__}" for one in (*get_args(ops.Result), ops.Repeated)),
    *(f"operator {name[4:]}" for name in dir(Operator) if name.startswith("_do_")),
    *(f"job {kind} done" for kind in (*ops.JOB_KINDS_BY_USERS, "end_endpoint", "delete_endpoint", "switch_ordering")),
    *(f"refusal {code}" for code in REFUSALS),
    "accepted", "duplicate", "crash", "fatal StoreLocked", "fatal StoreBroken", "note clock.stepped",
    "ordering changed",
)  # fmt: skip


def missing(seen: Counter[str]) -> list[str]:
    """Behaviours that no world showed."""
    return [name for name in EXPECTED if not seen[name]]


def table(seen: Counter[str]) -> str:
    """Everything that was seen, with its counts, a line for each kind."""
    groups: dict[str, list[str]] = {}
    for name in sorted({*seen, *EXPECTED}):
        kind, _, rest = name.partition(" ")
        groups.setdefault(kind, []).append(f"{rest or kind} {seen[name]}")
    return "\n".join(f"{kind:>10}: {', '.join(entries)}" for kind, entries in groups.items())
