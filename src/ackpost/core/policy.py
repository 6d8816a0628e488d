"""An endpoint's policy: presets, merging, checking (contract §5). Stored as set, merged by field over its preset."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from ackpost.errors import FieldError, InvalidInput

RETRY_ON_CLASSES: Final = frozenset({"any", "network", "timeout", "3xx", "4xx", "5xx"})

Seconds = Annotated[float, msgspec.Meta(ge=0)]


class Retry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a failed attempt is repeated: exponential (``base_s`` …) or a list (``schedule_s``), never both."""

    base_s: float = 2.0
    factor: float = 2.0
    cap_s: float = 3600.0
    jitter: Literal["full", "equal", "none"] = "full"
    max_attempts: int | None = None
    max_age_s: float | None = 259200.0
    retry_on: tuple[str, ...] = ("any",)
    schedule_s: tuple[float, ...] | None = None
    jitter_ratio: float = 0.0


class CircuitPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When an endpoint is spared and how it comes back."""

    enabled: bool = True
    failures: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    ratio: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
    attempts_min: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 20
    window_s: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 60.0
    span_min_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 5.0
    open_s: Annotated[float, msgspec.Meta(ge=0.1, le=86400)] = 30.0
    open_max_s: Annotated[float, msgspec.Meta(ge=0.1, le=86400)] = 600.0
    successes: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    on_open: Literal["park", "fail-fast"] = "park"


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The effective policy: every field has its value."""

    preset: Literal["messaging", "store", "standard-webhooks"] = "messaging"
    retry: Retry = Retry()
    timeout_s: Annotated[float, msgspec.Meta(ge=1, le=30)] = 5.0
    max_in_flight: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10
    rate_per_s: Annotated[float, msgspec.Meta(gt=0, le=100_000)] | None = None
    ordering: Literal["best-effort", "by-key"] = "best-effort"
    on_dead: Literal["skip", "hold"] = "skip"
    on_gone: Literal["disable", "fail"] = "disable"
    circuit: CircuitPolicy = CircuitPolicy()
    disable_after_s: Annotated[float, msgspec.Meta(ge=43200, le=31_536_000)] = 432000.0


_STANDARD_SCHEDULE_S: Final = (5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400)

PRESETS: Final[dict[str, dict[str, Any]]] = {
    "messaging": {
        "retry": {
            "base_s": 2.0, "factor": 2.0, "cap_s": 3600.0, "jitter": "full", "max_attempts": None,
            "max_age_s": 259200.0, "retry_on": ["any"],
        },
    },
    "store": {
        "retry": {
            "base_s": 1.0, "factor": 2.0, "cap_s": 512.0, "jitter": "none", "max_attempts": 11,
            "max_age_s": None, "retry_on": ["network", "timeout", "5xx"],
        },
        "circuit": {"enabled": False},
    },
    "standard-webhooks": {
        "retry": {
            "schedule_s": list(_STANDARD_SCHEDULE_S), "jitter_ratio": 0.2, "max_age_s": None, "retry_on": ["any"],
        },
    },
}  # fmt: skip

_EXPONENTIAL: Final = frozenset({"base_s", "factor", "cap_s", "jitter", "max_attempts"})
_LISTED: Final = frozenset({"schedule_s", "jitter_ratio"})


def effective_policy(stored: dict[str, Any]) -> Policy:
    """Merge what the caller set over its preset and check it.

    Raises: InvalidInput naming each wrong field below ``("body", "policy")``.
    """
    preset = stored.get("preset", "messaging")
    if not isinstance(preset, str) or preset not in PRESETS:
        raise _invalid("preset", f"must be one of {', '.join(PRESETS)}")
    merged: dict[str, Any] = {"preset": preset}
    for name in ("retry", "circuit"):
        given = stored.get(name)
        if given is None:
            given = {}
        if not isinstance(given, dict):
            raise _invalid(name, "must be an object")
        base = PRESETS[preset].get(name, {})
        merged[name] = _merge_retry(base, given) if name == "retry" else {**base, **_set(given)}
    merged.update(_set({k: v for k, v in stored.items() if k not in ("preset", "retry", "circuit")}))
    try:
        policy = msgspec.convert(merged, Policy, strict=True)
    except msgspec.ValidationError as error:
        raise _invalid_from(error) from None
    _check_retry(policy.retry)
    _check_circuit(policy.circuit)
    return policy


def stored_policy(stored: dict[str, Any]) -> Policy:
    """As ``effective_policy``, but what cannot be used (it was written by hand, or under other limits) is left out.

    For those who must go on whatever a row holds. Nothing is sent under a policy that ``effective_policy`` refuses.
    """
    try:
        return effective_policy(stored)
    except InvalidInput:
        usable: dict[str, Any] = {}
        for name, value in stored.items():
            try:
                effective_policy({**usable, name: value})
            except InvalidInput:
                continue
            usable[name] = value
        return effective_policy(usable)


def _set(given: dict[str, Any]) -> dict[str, Any]:
    """Leave out nulls: JSON Merge Patch resets a field to its default by null."""
    return {name: value for name, value in given.items() if value is not None or name == "rate_per_s"}


def _merge_retry(base: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    listed, exponential = _LISTED & given.keys(), _EXPONENTIAL & given.keys()
    if listed and exponential:
        raise _invalid("retry", f"{sorted(exponential)[0]} and {sorted(listed)[0]} exclude each other: use one kind")
    if "schedule_s" in given:
        base = {name: value for name, value in base.items() if name not in _EXPONENTIAL}
    elif exponential:
        base = {name: value for name, value in base.items() if name not in _LISTED}
    merged = {**base, **given}
    if merged.get("schedule_s") is None and "jitter_ratio" in given:
        raise _invalid("retry", "jitter_ratio goes with schedule_s; use jitter with base_s, factor and cap_s")
    return merged


def _check_retry(retry: Retry) -> None:
    problems = [
        (not 0.05 <= retry.base_s <= 86400, "base_s", "must be from 0.05 to 86,400 seconds"),
        (not 1 <= retry.factor <= 10, "factor", "must be from 1 to 10"),
        (not 0.05 <= retry.cap_s <= 604800, "cap_s", "must be from 0.05 to 604,800 seconds"),
        (
            retry.max_attempts is not None and not 1 <= retry.max_attempts <= 1000,
            "max_attempts",
            "must be from 1 to 1,000, or null for no limit",
        ),
        (
            retry.max_age_s is not None and not 1 <= retry.max_age_s <= 31_536_000,
            "max_age_s",
            "must be from 1 to 31,536,000 seconds, or null for no limit",
        ),
        (not 0 <= retry.jitter_ratio < 1, "jitter_ratio", "must be from 0 to below 1"),
        (
            retry.schedule_s is not None
            and not (1 <= len(retry.schedule_s) <= 100 and all(0.05 <= s <= 2_592_000 for s in retry.schedule_s)),
            "schedule_s",
            "must be 1 to 100 delays, each from 0.05 to 2,592,000 seconds",
        ),
        (
            not retry.retry_on or not all(_valid_retry_on(rule) for rule in retry.retry_on),
            "retry_on",
            "must name any of any, network, timeout, 3xx, 4xx, 5xx or single status codes from 300 to 599",
        ),
        (
            retry.schedule_s is None and retry.max_attempts is None and retry.max_age_s is None,
            "max_age_s",
            "max_attempts and max_age_s cannot both be null: a delivery must end some day",
        ),
    ]
    found = [FieldError(("body", "policy", "retry", name), text) for wrong, name, text in problems if wrong]
    if found:
        raise InvalidInput("The policy's retry rule is not valid.", errors=found)


def _valid_retry_on(rule: str) -> bool:
    return rule in RETRY_ON_CLASSES or (len(rule) == 3 and rule.isascii() and rule.isdigit() and "300" <= rule < "600")


def _check_circuit(circuit: CircuitPolicy) -> None:
    if circuit.open_max_s < circuit.open_s:
        raise _invalid("circuit", "open_max_s must not be below open_s")


def _invalid(field: str, text: str) -> InvalidInput:
    return InvalidInput("The policy is not valid.", errors=[FieldError(("body", "policy", field), text)])


def _invalid_from(error: msgspec.ValidationError) -> InvalidInput:
    text, _, path = str(error).partition(" - at `$")
    parts = tuple(part for part in path.rstrip("`").replace("[", ".").replace("]", "").split(".") if part)
    return InvalidInput("The policy is not valid.", errors=[FieldError(("body", "policy", *parts), text)])
