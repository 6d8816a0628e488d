"""What a world begins with: endpoints, each with a receiver, a policy and a secret drawn by chance."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, cast

from ackpost.core.model import Endpoint, EndpointSecret
from ackpost.core.signing import new_secret, seal
from tests.simulation.models import KINDS, Model
from tests.simulation.receivers import KINDS as WIRE_KINDS
from tests.simulation.receivers import Receiver

if TYPE_CHECKING:
    from tests.simulation.world import World

FORMATS = ("standard", "standard", "store", "flat", "bare")


def new_endpoint(world: World, tenant: int, kind: str | None = None) -> Endpoint:
    """Draw an endpoint; its receiver stands already, whether or not it will be stored."""
    rng, number = world.random, len(world.paths)
    if kind is None:
        kind = rng.choice(KINDS if world.network is None else WIRE_KINDS)
    path = f"/e{number}"
    host = "shared" if rng.random() < 0.3 else f"h{number}"
    signature = rng.choice(["standard", "standard", "sha256-hex"])
    text = new_secret(cast("Any", signature), rng.randbytes(32))
    world.paths[path] = [text]
    _add_receiver(world, kind, host, path)
    world.history.seen[f"model {kind}"] += 1
    return Endpoint(
        position=0, tenant=tenant, url=f"https://{host}.example{path}", format=rng.choice(FORMATS),
        event_types=rng.choice([("*",), ("*",), ("order.*",), ("*", "ackpost.*"), ("ackpost.*",)]),
        signature=signature, policy=_policy(rng), created_at_ms=world.now_ms(),
        secrets=(EndpointSecret(seal(text), world.now_ms()),),
    )  # fmt: skip


def path_of(endpoint: Endpoint) -> str:
    """Give the path of a URL that was made here."""
    return "/" + endpoint.url.rpartition("/")[2]


def _add_receiver(world: World, kind: str, host: str, path: str) -> None:
    rng = random.Random(world.random.getrandbits(64))
    if world.network is None:
        world.models[path] = Model(kind, rng, world.chaos_s)
    else:
        world.network.site(f"{host}.example").receivers[path] = Receiver(kind, rng, world.chaos_s)


def _policy(rng: random.Random) -> dict[str, Any]:
    retry: dict[str, Any] = {
        "base_s": rng.choice([0.1, 0.5, 1]), "cap_s": rng.choice([2, 10, 30]),
        "jitter": rng.choice(["full", "equal", "none"]), "max_attempts": rng.choice([None, 3, 8]),
        "max_age_s": rng.choice([20, 120, 600]),
        "retry_on": rng.choice([["any"], ["any"], ["network", "timeout", "5xx"]]),
    }  # fmt: skip
    if rng.random() < 0.15:
        retry = {"schedule_s": [0.5, 2, 10], "jitter_ratio": 0.2, "max_age_s": None}
    policy: dict[str, Any] = {
        "retry": retry, "timeout_s": rng.choice([1, 2, 5]), "max_in_flight": rng.choice([1, 3, 10]),
        "ordering": rng.choice(["best-effort", "by-key"]), "on_dead": rng.choice(["skip", "hold"]),
        "on_gone": rng.choice(["disable", "fail"]),
        "circuit": {
            "enabled": rng.random() < 0.8, "failures": rng.choice([3, 5, 10]), "attempts_min": rng.choice([6, 20]),
            "span_min_s": rng.choice([0, 1, 5]), "open_s": rng.choice([1, 4, 10]), "open_max_s": 20,
            "successes": rng.choice([1, 3]), "on_open": rng.choice(["park", "park", "fail-fast"]),
        },
    }  # fmt: skip
    if rng.random() < 0.2:
        policy["rate_per_s"] = rng.choice([1, 5])
    return policy
