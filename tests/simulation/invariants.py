"""What must hold when a world has settled (design §6), and while it settles."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import standardwebhooks

from ackpost.core.policy import effective_policy
from tests.simulation.history import Published, Send, Violation

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.world import World

FORGOTTEN_MS = 7000
"""Twice the poll and five seconds."""


def nothing_is_forgotten(world: World) -> None:
    """I8: an endpoint with due rows that may be sent to gets a request every few seconds. Raises: Violation."""
    now_ms, true_ms = world.now_ms(), world.true_ms()
    if (world.loop.time() - world.served_s) * 1000 < FORGOTTEN_MS:
        return
    for position, rows in world.state.pending.items():
        endpoint = world.state.endpoints.get(position)
        due = [row for row in rows.values() if not row.waiting and now_ms - row.due_ms > FORGOTTEN_MS]
        if endpoint is None or not due or endpoint.state != "enabled" or endpoint.circuit.state == "open":
            continue
        if endpoint.retry_after_until_ms > now_ms - FORGOTTEN_MS or now_ms - endpoint.updated_at_ms < FORGOTTEN_MS:
            continue
        sends = world.history.by_endpoint.get(position, [])
        last_ms = max((send.done_ms or true_ms for send in sends[-20:]), default=0)
        if true_ms - last_ms > FORGOTTEN_MS:
            raise Violation(f"I8: due since {now_ms - due[0].due_ms} ms, and nothing is sent: {due[0]}")


def memory_is_clean(node: Node) -> None:
    """After a stop in good order nothing is counted as held or under way. Raises: Violation."""
    engine = node.engine
    payload_bytes = sum(
        len(ref.payload.data) for lane in engine.lanes.values() for ref in lane.known.values() if ref.payload
    )
    refs = sum(len(lane.known) for lane in engine.lanes.values())
    found = {
        "budget.refs": engine.budget.refs - refs,
        "budget.payload_bytes": engine.budget.payload_bytes - payload_bytes,
        "in flight": engine.dispatcher.in_flight,
        "troubled": engine.dispatcher.troubled_in_flight,
        "lanes in flight": sum(lane.in_flight for lane in engine.lanes.values()),
        "unrecorded": engine.unrecorded(),
        "slots": len(node.marks),
        "waiters": len(engine.waiters),
    }
    wrong = {name: value for name, value in found.items() if value}
    if wrong:
        raise Violation(f"left over: {wrong}")


def counts_are_right(world: World) -> None:
    """I7: a process counts what it was told is durable, all of it and once. Raises: Violation."""
    commits = world.commits
    counted = world.accepted_events, world.accepted_deliveries, world.counted_attempts
    told = commits.told_events, commits.told_deliveries, commits.told_attempts
    if counted != told:
        raise Violation(f"I7: counted {counted}, stored {told} (events, deliveries, results)")


async def reads_agree(world: World, node: Node) -> None:
    """I7: counts that the store gives are those of its rows. Raises: Violation."""
    state, store = world.state, node.durable
    for event in state.events.values():
        rows = Counter(str(state.rows[one].status) for one in state.rows_of_event.get(event.position, ()))
        found = await store.event(None, event.position)
        if found is None or found.delivery_counts != rows:
            raise Violation(f"I7: the event counts {found}, its rows {rows}")
    by_status = Counter(str(row.status) for row in state.rows.values() if row.trigger != "test")
    counted: Counter[str] = Counter()
    for _, counts in await store.stats(None, "endpoint", None):
        counted.update(counts)
    if +counted != by_status:
        raise Violation(f"I7: the statistics say {counted}, the rows {by_status}")
    pending = await store.pending_counts()
    waiting = sum(row.waiting for row in state.rows.values() if row.status == "pending")
    if pending != {"due": sum(row.status == "pending" for row in state.rows.values()) - waiting, "waiting": waiting}:
        raise Violation(f"I7: {pending} are said to be pending, waiting are {waiting}")


def check_all(world: World) -> None:
    """Raises: Violation."""
    _acknowledged_is_kept(world)
    _published_once(world)
    _requests_are_recorded(world)
    _deaths_have_their_reason(world)
    _deliveries_were_seen(world)
    _rates_are_kept(world)
    _jobs_count(world)
    _signatures_verify(world)


def _acknowledged_is_kept(world: World) -> None:
    """I1."""
    for published in world.history.published:
        if published.position is None:
            continue
        event = world.state.events.get(published.position)
        if event is None:
            if published.position in world.history.removed_events:
                continue
            raise Violation(f"I1: an acknowledged event is lost: {published}")
        rows = world.state.rows_of_event.get(event.position, [])
        if len(rows) + world.history.removed_rows[event.position] < published.deliveries:
            raise Violation(f"I1: {published.deliveries} deliveries were told, {len(rows)} are there: {published}")
        if event.data is not None and msgspec.json.decode(event.data)["n"] != published.marker:
            raise Violation(f"I1: another event was stored than was acknowledged: {published}")


def _published_once(world: World) -> None:
    """An event is stored once, but for publishers that repeat without uid or key; nothing comes from nowhere."""
    leapt = world.history.leap_ms + world.history.old_leaps_ms > 23 * 3_600_000
    copies: Counter[int] = Counter()
    for event in world.state.events.values():
        if not event.type.startswith("ackpost.") and event.data is not None:
            copies[int(msgspec.json.decode(event.data)["n"])] += 1
    for published in world.history.published:
        allowed = _copies_allowed(published, leapt=leapt)
        if copies[published.marker] > allowed:
            raise Violation(f"I1: stored {copies[published.marker]} times, allowed {allowed}: {published}")
        if published.refused is not None and published.unsure == 0 and copies[published.marker]:
            raise Violation(f"I1: refused and stored: {published}")


def _copies_allowed(published: Published, *, leapt: bool) -> int:
    if published.repeatable and not (published.by_key and leapt):
        return 1
    return (published.position is not None) + published.unsure


def _requests_are_recorded(world: World) -> None:
    """I2: requests of a delivery ≤ recorded attempts + what was in flight at crashes; every attempt was a request."""
    for delivery, sends in world.history.by_delivery.items():
        if delivery not in world.state.rows:
            continue  # by retention
        attempts = world.state.attempts.get(delivery, [])
        again = sum(send.code == "local_error" or send.lost for send in sends)
        allowed = len(attempts) + world.history.in_flight_at_crash[delivery] + again
        if len(sends) > allowed:
            raise Violation(f"I2: {len(sends)} requests, {allowed} allowed: {attempts} {sends}")
        real = Counter((one.round, one.number) for one in attempts if one.code != "interrupted")
        sent = Counter((send.round, send.number) for send in sends)
        invented = real - sent
        if invented and delivery not in world.history.touched_by_people:
            raise Violation(f"I2: attempts that were never sent: {invented}, {sends}")
        _delays_are_kept(world, delivery, sends)


def _delays_are_kept(world: World, delivery: int, sends: list[Send]) -> None:
    """I6: attempts of a round ≤ the policy's, and the row counts them all."""
    row = world.state.rows[delivery]
    attempts = world.state.attempts.get(delivery, [])
    # One that was under way when a new round began is stored late, and counted in its own round only.
    if row.round == 1 and attempts and row.number != max(attempt.number for attempt in attempts):
        raise Violation(f"I7: the delivery counts {row.number} attempts, {len(attempts)} are recorded: {row}")
    endpoint = world.state.endpoints.get(row.endpoint)
    if endpoint is None:
        return
    limit = effective_policy(endpoint.policy).retry.max_attempts
    of_round = Counter(attempt.round for attempt in attempts if attempt.code != "interrupted")
    if limit is not None and of_round and max(of_round.values()) > limit:
        raise Violation(f"I6: {max(of_round.values())} attempts in a round, allowed are {limit}: {row}")


def _deaths_have_their_reason(world: World) -> None:
    """I6: a delivery dies for the reason it says."""
    for row in world.state.rows.values():
        world.history.seen[f"ended {row.status} {row.reason}"] += 1
        if row.status != "dead":
            continue
        endpoint = world.state.endpoints.get(row.endpoint)
        if endpoint is None:
            continue
        policy = effective_policy(endpoint.policy)
        attempts = [one for one in world.state.attempts.get(row.position, []) if one.round == row.round]
        holds = {
            "attempts_exhausted": len(attempts) >= (policy.retry.max_attempts or 4),
            "age_exceeded": policy.retry.max_age_s is not None,
            "permanent_failure": "any" not in policy.retry.retry_on,
            "gone": any(send.status_code == 410 for send in world.history.by_endpoint.get(row.endpoint, [])),
            "endpoint_disabled": row.endpoint in world.history.disabled_endpoints,
            "circuit_open": policy.circuit.on_open == "fail-fast",
            "data_expired": row.event in world.history.expired_events,
            "format_conflict": row.pin.startswith("flat")
            and b'"event"' in (world.state.events[row.event].data or b'"event"'),
            "poison": world.history.in_flight_at_crash[row.position] >= 3,
        }.get(row.reason or "")
        if not holds:
            raise Violation(f"I6: dead without cause: {row}, {attempts}")


def _has_member_event(world: World, event: int) -> bool:
    data = world.state.events[event].data
    return data is None or b'"event":' in data


def _deliveries_were_seen(world: World) -> None:
    """I1: what is called delivered was answered with 2xx."""
    for row in world.state.rows.values():
        sends = world.history.by_delivery.get(row.position, [])
        if row.status == "delivered" and not any(send.code == "delivered" for send in sends):
            raise Violation(f"I1: delivered, but nobody answered 2xx: {row}, {sends}")


def _rates_are_kept(world: World) -> None:
    """I6: an endpoint with a rate gets at most a second's worth at once, and that much a second."""
    for position, sends in world.history.by_endpoint.items():
        endpoint = world.state.endpoints.get(position)
        rate = None if endpoint is None else effective_policy(endpoint.policy).rate_per_s
        if rate is None:
            continue
        by_process: dict[str, list[int]] = {}
        for send in sends:
            if not send.is_test:
                by_process.setdefault(repr(id(send.process)), []).append(send.true_ms)
        for times in by_process.values():
            for index, first_ms in enumerate(times):
                within = sum(1 for one in times[index:] if one - first_ms < 1000)
                if within > 2 * max(1.0, rate) + 1:
                    raise Violation(f"I6: {within} requests in a second, the rate is {rate}")


def _jobs_count(world: World) -> None:
    """I7: a job that is done has looked at as much as it says."""
    for job in world.state.jobs.values():
        if job.state == "done" and job.total != job.done + job.skipped + job.failed:
            raise Violation(f"I7: the job's counts do not add up: {job}")


def _signatures_verify(world: World) -> None:
    """I5: a sample of requests verifies with the published library, by one of the endpoint's secrets."""
    for send in world.history.sends[::23]:
        headers = send.headers
        if "webhook-signature" not in headers:
            continue
        moment = float(headers["webhook-timestamp"])
        given = headers["webhook-signature"].split(" ")
        event_id, secrets = headers["webhook-id"], world.paths[world.history.path_of_endpoint[send.endpoint]]
        if not any(_sign(secret, event_id, moment, send.body) in given for secret in secrets):
            raise Violation(f"I5: no secret of the endpoint made this signature: {send}")


def _sign(secret: str, event_id: str, moment: float, body: bytes) -> str:
    return standardwebhooks.Webhook(secret).sign(event_id, datetime.fromtimestamp(moment, UTC), body.decode())
