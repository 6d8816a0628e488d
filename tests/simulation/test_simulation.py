"""Many small worlds, each from a seed: whatever happens in them, the promises of design §6 hold.

A failing seed is replayed with ``make simulate SEED=<seed>``; ``make simulate SEEDS=<n>`` runs n fresh ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.simulation.history import Violation
from tests.simulation.world import World

FIXED = range(200)
FIXED_ON_SQLITE = range(1000, 1100)

EXPECTED = (
    *(f"verdict {verdict}" for verdict in ("delivered", "retry", "again", "discarded")),
    *(
        f"verdict dead:{reason}"
        for reason in (
            "attempts_exhausted", "age_exceeded", "permanent_failure", "gone", "circuit_open", "poison",
        )
    ),
    *(f"circuit {state}" for state in ("open", "half-open", "ramping", "closed")),
    *(f"circuit to {state}" for state in ("open", "ramping", "closed")),
    *(f"ended dead {reason}" for reason in ("endpoint_disabled", "data_expired", "poison", "gone", "age_exceeded")),
    *(f"ended {state}" for state in ("delivered None", "cancelled None", "discarded attempts_exhausted")),
    *(
        f"code {code}"
        for code in (
            "delivered", "status", "redirect", "timeout", "connect_timeout", "dns_error", "connect_refused", "reset",
            "connect_error", "tls_error", "bad_response", "response_too_large", "blocked_target", "local_error",
        )
    ),
    *(
        f"fault {fault}"
        for fault in (
            "busy", "full", "broken_before", "unknown_after", "unknown_before", "crash_before_commit", 
            "crash_after_commit", "read_fault",
            "crash", "freeze", "takeover", "clock set back", "clock set forward", "slow store", "poison",
            "flush_failed",
        )
    ),
    *(
        f"operator {verb}"
        for verb in (
            "pause", "resume", "disable", "enable", "rotate", "test", "redeliver", "redeliver_event", "cancel",
            "cancel_and_redeliver", "expire", "replay", "discard", "recover", "cancel_job", "change_policy",
        )
    ),
    *(f"refusal {code}" for code in ("overloaded", "storage_full", "outcome_unknown", "invalid_state", "data_expired")),
    "accepted", "duplicate", "crash", "fatal StoreLocked", "note clock.stepped", "ordering changed",
)  # fmt: skip


def _seeds(fixed: range) -> list[int]:
    """The fixed ones, or those asked for by environment."""
    one, count = os.environ.get("SIMULATE_SEED"), os.environ.get("SIMULATE_SEEDS")
    if one:
        return [int(one)]
    if count:
        first = int.from_bytes(os.urandom(4), "big")
        return list(range(first, first + int(count)))
    return list(fixed)


@cache
def _seen(seed: int) -> Counter[str]:
    return World(seed).run().seen


@pytest.mark.parametrize("seed", _seeds(FIXED))
def test_the_promises_hold_in_a_world(seed: int) -> None:
    """Nothing acknowledged is lost, nothing is sent that must not be, and in the end all settles."""
    try:
        _seen(seed)
    except Violation as violation:
        pytest.fail(f"{violation}\n\nreplay: make simulate SEED={seed}")


@pytest.mark.parametrize("seed", _seeds(FIXED_ON_SQLITE))
def test_the_promises_hold_on_sqlite(seed: int) -> None:
    """The same on a SQLite file, which in every read and commit says what the reference store says."""
    try:
        World(seed, sqlite=True).run()
    except Violation as violation:
        pytest.fail(f"{violation}\n\nreplay: make simulate SEED={seed}")


@pytest.mark.timeout(300)
def test_the_worlds_show_every_behaviour() -> None:
    """Each verdict, circuit state, error code, fault and deed of people is there: a quiet world proves nothing."""
    seen: Counter[str] = Counter()
    for seed in FIXED:
        seen.update(_seen(seed))
    assert [name for name in EXPECTED if not seen[name]] == []


_RUN = "from tests.simulation.world import World; world = World({seed}); world.run(); print(world.fingerprint())"


@pytest.mark.parametrize("seed", [3, 17])
def test_a_seed_gives_the_same_world_again(seed: int) -> None:
    """Here and in processes with other hash seeds, every request is the same at the same virtual time."""
    world = World(seed)
    world.run()
    for hash_seed in ("1", "2"):
        told = subprocess.run(
            [sys.executable, "-c", _RUN.format(seed=seed)],
            check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )  # fmt: skip
        assert told.stdout.strip() == world.fingerprint()
