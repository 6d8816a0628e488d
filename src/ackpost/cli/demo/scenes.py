"""What the demo shows. Each scene does it with real requests, checks what was promised, and tells it in a line."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from ackpost.cli import samples
from ackpost.cli.client import ApiClient, decoded
from ackpost.cli.demo.receiver import FLAKY, SICK, Arrival, Receiver
from ackpost.cli.verifying import Verifier
from ackpost.core.times import parse_rfc3339
from ackpost.errors import AckpostError

_POLL_S: Final = 0.05
_OUTAGE_S: Final = 2
_PARKED: Final = 8
_OPENING_SLACK_MS: Final = 60
_FAST_RETRY: Final = {"base_s": 0.05, "jitter": "none"}
_AUTH: Final = '-H "Authorization: Bearer $ACKPOST_API_KEY"'


class Told(msgspec.Struct):
    """What a scene tells: what happened, and the ``curl`` that repeats it."""

    what: str
    curl: str


class Stage:
    """Server and receiver, and what several scenes do with them."""

    def __init__(self, api: ApiClient, receiver: Receiver) -> None:
        self._api = api
        self.receiver = receiver

    async def call(self, method: str, path: str, body: object = None, raw: bytes | None = None) -> Any:
        """Call the API."""
        return decoded(await asyncio.to_thread(self._api.call_bytes, method, path, body, raw=raw))

    async def endpoint(self, uid: str, path: str, event_types: list[str], **fields: Any) -> None:
        """Make an endpoint of the receiver, which from then on verifies with its secret."""
        wanted = {"uid": uid, "url": self.receiver.url(path), "event_types": event_types, **fields}
        made = await self.call("POST", "/v1/endpoints", wanted)
        self.receiver.verifiers[path] = Verifier(made.get("secret") or made["public_key"], made["signature"])

    async def publish(self, type: str, data: bytes, key: str | None = None) -> str:
        """Publish one event and give its id."""
        head: dict[str, Any] = {"type": type} if key is None else {"type": type, "key": key}
        answer = await self.call("POST", "/v1/events", raw=json.dumps(head).encode()[:-1] + b',"data":' + data + b"}")
        return str(answer["id"])

    async def until(self, what: str, path: str, is_so: Callable[[Any], bool], timeout_s: float = 10.0) -> Any:
        """Read an object until it is as wanted.

        Raises: AckpostError when it is not in time.
        """
        end = time.monotonic() + timeout_s
        while not is_so(found := await self.call("GET", path)):
            if time.monotonic() > end:
                raise AckpostError(f"{what}: not within {timeout_s:g} s")
            await asyncio.sleep(_POLL_S)
        return found

    async def event(self, event_id: str, status: str, timeout_s: float = 10.0) -> Any:
        """Wait for an event's status and give the event."""
        what = f"event {event_id} {status}"
        return await self.until(what, f"/v1/events/{event_id}", lambda event: event["status"] == status, timeout_s)


async def delivered_at_first(stage: Stage) -> Told:
    """Two systems' events go to endpoints of three formats and signatures."""
    ours = ["message.*", "account.*"]
    shop = ["pet.*", "order.*", "payment.*"]
    await stage.endpoint("demo-messages", "/messages", ours, format="flat", key_field="message_id")
    await stage.endpoint("demo-store", "/store", shop, format="store", signature="sha256-hex",
                         policy={"preset": "store"})  # fmt: skip
    await stage.endpoint("demo-archive", "/archive", ours + shop, format="bare", signature="standard-ed25519")
    published = [(sample := samples.load(name), await _published(stage, sample)) for name in samples.NAMES]
    for sample, event_id in published:
        await stage.event(event_id, "delivered")
        arrivals = stage.receiver.of(event_id)
        _promise(len(arrivals) == 2, f"{sample.type} came {len(arrivals)} times instead of twice")
        for arrival in arrivals:
            _check_signed(arrival)
            _check_body(arrival, bytes(sample.data))
    pet = samples.load("pet_adopted")
    size = max(len(bytes(sample.data)) for sample, _ in published)
    return Told(
        f"{len(published)} events, {2 * len(published)} requests: signatures verified (3 kinds), "
        f"data up to {size:,} bytes as published",
        _post("events", {"type": pet.type, "key": pet.key, "data": decoded(bytes(pet.data))}),
    )


async def delivered_after_retries(stage: Stage) -> Told:
    """An endpoint fails twice; the third attempt brings the same bytes under the same id."""
    await stage.endpoint("demo-flaky", FLAKY, ["invoice.*"], policy={"retry": _FAST_RETRY})
    order = bytes(samples.load("order_created").data)
    event_id = await stage.publish("invoice.issued", order)
    await stage.event(event_id, "delivered")
    arrivals = stage.receiver.of(event_id)
    _promise([one.status for one in arrivals] == [500, 500, 200], "the attempts were not 500, 500, 200")
    for arrival in arrivals:
        _check_signed(arrival)
    _promise({one.body for one in arrivals} == {arrivals[0].body}, "the body was not the same on each attempt")
    _promise(arrivals[0].body.endswith(b',"data":' + order + b"}"), "the data are not the published bytes")
    return Told(
        f"500, 500, 200: three attempts, one id, the same {len(arrivals[0].body):,} bytes",
        _post("events", {"type": "invoice.issued", "data": {"orderId": "order-789"}}),
    )


async def circuit_opened_and_closed(stage: Stage) -> Told:
    """An endpoint is sick for two seconds: its circuit spares it, then lets everything through."""
    policy = {
        "retry": _FAST_RETRY,
        "max_in_flight": 2,
        "circuit": {"failures": 3, "span_min_s": 0, "open_s": 1, "open_max_s": 2, "successes": 1},
    }
    await stage.endpoint("demo-sick", SICK, ["stock.*"], policy=policy)
    path = "/v1/endpoints/demo-sick"
    first = await stage.publish("stock.changed", json.dumps({"sku": "SKU-1", "outage_s": _OUTAGE_S}).encode())
    opened = await stage.until("circuit open", path, lambda one: one["circuit"]["state"] == "open")
    failures = len(stage.receiver.of(first))
    events = [first] + [await stage.publish("stock.changed", b'{"sku":"SKU-%d"}' % n) for n in range(_PARKED)]
    for event_id in events:
        await stage.event(event_id, "delivered", timeout_s=15.0)
    _check_spared(stage.receiver, opened["circuit"])
    await _traffic_until_closed(stage, path)
    accepted = [one.event_id for one in stage.receiver.arrivals if one.path == SICK and one.status == 200]
    _promise(len(accepted) == len(set(accepted)) and set(events) <= set(accepted), "not each event came exactly once")
    return Told(
        f"sick for {_OUTAGE_S:g} s: opened after {failures} failures, {_PARKED} events waited, a probe closed it, "
        "each came once",
        _post("events", {"type": "stock.changed", "data": {"sku": "SKU-1", "outage_s": _OUTAGE_S}}),
    )


async def dead_lettered(stage: Stage) -> Told:
    """A mistyped URL answers 404 until the attempts are used up; nothing is lost."""
    policy = {"retry": {**_FAST_RETRY, "max_attempts": 3}}
    await stage.endpoint("demo-typo", "/renewal", ["subscription.*"], policy=policy)
    data = {"id": "sub-31", "text": "تم التجديد"}
    event_id = await stage.publish("subscription.renewed", json.dumps(data, ensure_ascii=False).encode())
    await stage.event(event_id, "dead")
    listed = await stage.call("GET", "/v1/dead-letters?endpoint_id=demo-typo")
    _promise([one["event_id"] for one in listed["data"]] == [event_id], "the dead letter is not listed")
    letter = await stage.call("GET", f"/v1/dead-letters/{listed['data'][0]['delivery_id']}")
    _promise(letter["reason"] == "attempts_exhausted", f"it died of {letter['reason']}")
    _promise(letter["data"] == data, "its data was not kept")
    codes = [one["status_code"] for one in reversed(letter["attempts"])]
    _promise(codes == [404, 404, 404], f"its attempts are {codes}")
    return Told(
        "404, 404, 404 at a mistyped URL: kept with its data and attempts",
        f'curl -s "$ACKPOST_URL/v1/dead-letters" {_AUTH}',
    )


async def repaired_and_replayed(stage: Stage) -> Told:
    """The URL is corrected and the dead letter replayed: it arrives under its id, signed with today's secret."""
    url = stage.receiver.url("/renewals")
    stage.receiver.verifiers["/renewals"] = stage.receiver.verifiers["/renewal"]
    await stage.call("PATCH", "/v1/endpoints/demo-typo", {"url": url})
    listed = await stage.call("GET", "/v1/dead-letters?endpoint_id=demo-typo")
    event_id = listed["data"][0]["event_id"]
    job = await stage.call("POST", "/v1/dead-letters/replay", {"endpoint_id": "demo-typo"})
    done = await stage.until("replay done", f"/v1/jobs/{job['job_id']}", lambda one: one["state"] == "done")
    await stage.event(event_id, "delivered")
    [arrival] = stage.receiver.of(event_id, "/renewals")
    _check_signed(arrival)
    before = stage.receiver.of(event_id, "/renewal")[0]
    _promise(arrival.body == before.body, "the replayed body is not the first one's")
    left = await stage.call("GET", "/v1/dead-letters?endpoint_id=demo-typo")
    _promise(left["data"] == [], "it is still a dead letter")
    return Told(
        f"URL corrected, {done['done']} replayed, delivered: the same id and bytes",
        _post("dead-letters/replay", {"endpoint_id": "demo-typo"}),
    )


SCENES: Final[dict[str, Callable[[Stage], Awaitable[Told]]]] = {
    "delivered at first": delivered_at_first,
    "delivered after retries": delivered_after_retries,
    "circuit opened and closed": circuit_opened_and_closed,
    "dead-lettered": dead_lettered,
    "repaired and replayed": repaired_and_replayed,
}


async def _published(stage: Stage, sample: samples.Sample) -> str:
    return await stage.publish(sample.type, bytes(sample.data), sample.key)


async def _traffic_until_closed(stage: Stage, path: str) -> None:
    """A circuit ramps up with its traffic: go on publishing until it is closed."""
    for number in range(100):
        found = await stage.call("GET", path)
        if found["circuit"]["state"] == "closed":
            return
        event_id = await stage.publish("stock.changed", b'{"sku":"SKU-9","count":%d}' % number)
        await stage.event(event_id, "delivered")
        await asyncio.sleep(0.25)
    raise AckpostError(f"the circuit is still {found['circuit']['state']}")


def _check_spared(receiver: Receiver, circuit: dict[str, Any]) -> None:
    opened_ms, retry_ms = parse_rfc3339(circuit["opened_at"]), parse_rfc3339(circuit["retry_at"])
    meanwhile = [
        one for one in receiver.arrivals
        if one.path == SICK and opened_ms + _OPENING_SLACK_MS < one.at_ms < retry_ms - _OPENING_SLACK_MS
    ]  # fmt: skip
    _promise(not meanwhile, f"{len(meanwhile)} requests came while the circuit was open")


def _check_signed(arrival: Arrival) -> None:
    _promise(arrival.fault is None, f"{arrival.path} got event {arrival.event_id} with a {arrival.fault}")


def _check_body(arrival: Arrival, data: bytes) -> None:
    """Each format carries the published bytes in its own place."""
    found = {
        "/messages": arrival.body.endswith(data.lstrip()[1:]),
        "/store": b',"data":' + data + b',"apiVersion":"v1"}' in arrival.body,
        "/archive": arrival.body == data,
    }
    _promise(found[arrival.path], f"{arrival.path} got other bytes than were published ({arrival.event_id})")


def _promise(kept: bool, otherwise: str) -> None:
    if not kept:
        raise AckpostError(otherwise)


def _post(path: str, body: dict[str, Any]) -> str:
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return f"curl -s \"$ACKPOST_URL/v1/{path}\" {_AUTH} -d '{text}'"
