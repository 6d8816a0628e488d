"""What people do with endpoints and deliveries, on a real server: stop, repair, replay, order, announcements."""

from __future__ import annotations

import json
from typing import Any

from tests.process.receiver import Receiver
from tests.process.server import Server, until
from tests.process.signatures import check_standard

ONCE = {"retry": {"max_attempts": 1}}
SOON = {"retry": {"schedule_s": [0.05] * 20, "jitter_ratio": 0}, "circuit": {"enabled": False}}


def _ids(receiver: Receiver, path: str) -> list[str | None]:
    return [request.header("webhook-id") for request in receiver.seen(path)]


def test_a_dead_letter_is_repaired_and_replayed(server: Server, receiver: Receiver) -> None:
    """A dead letter shows its data and attempts; with the URL mended, a replay delivers it signed to the new one."""
    endpoint = server.endpoint(receiver.hook("/broken", "404"), "repair.me", policy=ONCE)
    event = server.publish("repair.me", b'{"big":18446744073709551616}')
    delivery = server.settled(event["id"], "dead")
    letters = [one for one in server.get("/dead-letters")["data"] if one["delivery_id"] == delivery["id"]]
    assert [(one["reason"], one["last_error"], one["type"]) for one in letters] == [
        ("attempts_exhausted", "status", "repair.me")
    ]
    assert b'"data":{"big":18446744073709551616}' in server.api.call_bytes("GET", f"/v1/dead-letters/{delivery['id']}")
    server.patch(f"/endpoints/{endpoint['id']}", {"url": receiver.hook("/mended")})
    job = server.post("/dead-letters/replay", {"endpoint_id": endpoint["id"]})
    server.settled(event["id"])
    (request,) = receiver.seen("/mended")
    check_standard(request, endpoint["secret"])
    assert (request.header("webhook-id"), request.header("ackpost-attempt")) == (event["id"], "2")
    done = until(lambda: _done(server, job["job_id"]), "the job's end")
    assert (done["total"], done["done"], done["skipped"], done["failed"]) == (1, 1, 0, 0)
    assert delivery["id"] not in {one["delivery_id"] for one in server.get("/dead-letters")["data"]}


def _done(server: Server, job_id: str) -> dict[str, Any] | None:
    job: dict[str, Any] = server.get(f"/jobs/{job_id}")
    return job if job["state"] == "done" else None


def test_events_of_a_key_go_in_order_past_failures_and_other_keys_flow_on(server: Server, receiver: Receiver) -> None:
    """While the first event of a key fails, the next ones wait (held by order) and other keys are delivered."""
    policy = {**SOON, "ordering": "by-key", "retry": {"schedule_s": [0.3], "jitter_ratio": 0}}
    server.endpoint(receiver.hook("/ordered", "500,200"), "order.key", policy=policy)
    first = server.publish("order.key", key="a")
    receiver.wait("/ordered")
    waiting = [server.publish("order.key", key="a")["id"] for _ in range(3)]
    other = server.publish("order.key", key="b")
    server.settled(other["id"])
    assert {server.settled(one, "pending")["held_by"] for one in waiting} == {"order"}
    server.settled(waiting[-1])
    assert _ids(receiver, "/ordered") == [first["id"], other["id"], first["id"], *waiting]
    sequences = [json.loads(request.body)["sequence"] for request in receiver.seen("/ordered")]
    assert sequences == [1, 1, 1, 2, 3, 4]


def test_a_dead_event_holds_its_key_until_it_is_replayed(server: Server, receiver: Receiver) -> None:
    """With ``on_dead: hold`` the events behind a dead one wait for its replay, then go in order."""
    policy = {**ONCE, "ordering": "by-key", "on_dead": "hold"}
    server.endpoint(receiver.hook("/held", "400,200"), "hold.key", policy=policy)
    events = [server.publish("hold.key", key="k")["id"] for _ in range(3)]
    dead = server.settled(events[0], "dead")
    other = server.publish("hold.key", key="free")["id"]
    server.settled(other)
    assert [server.settled(one, "pending")["held_by"] for one in events[1:]] == ["order", "order"]
    server.post("/dead-letters/replay", {"ids": [dead["id"]]})
    server.settled(events[2])
    assert _ids(receiver, "/held") == [events[0], other, *events]


def test_a_paused_endpoint_keeps_its_deliveries_until_resumed(server: Server, receiver: Receiver) -> None:
    """Events published while paused wait, held by paused, and are sent after the resume."""
    endpoint = server.endpoint(receiver.hook("/paused"), "pause.me")
    server.post(f"/endpoints/{endpoint['id']}/pause")
    events = [server.publish("pause.me")["id"] for _ in range(3)]
    flows = server.endpoint(receiver.hook("/flows"), "pause.other")
    server.settled(server.publish("pause.other")["id"])
    assert flows["state"] == "enabled"
    assert {server.settled(one, "pending")["held_by"] for one in events} == {"paused"}
    assert receiver.seen("/paused") == []
    server.post(f"/endpoints/{endpoint['id']}/resume")
    for event in events:
        server.settled(event)
    assert sorted(map(str, _ids(receiver, "/paused"))) == sorted(events)


def test_what_a_disabled_endpoint_missed_is_recovered(server: Server, receiver: Receiver) -> None:
    """Disabling makes pending deliveries dead and later events none; enabling with recover sends both."""
    policy = {"retry": {"schedule_s": [600]}}
    endpoint = server.endpoint(receiver.hook("/disabled", "500"), "disable.me", policy=policy)
    path = f"/endpoints/{endpoint['id']}"
    pending = server.publish("disable.me")
    receiver.wait("/disabled")
    server.post(f"{path}/disable")
    assert server.settled(pending["id"], "dead")["reason"] == "endpoint_disabled"
    missed = server.publish("disable.me")
    assert missed["deliveries"] == 0
    (line,) = [
        one for one in server.get(f"/events/{missed['id']}/routing")["data"] if one["endpoint_id"] == endpoint["id"]
    ]
    assert line["delivery_id"] is None
    receiver.hook("/disabled")
    server.post(f"{path}/enable", {"test": True, "recover": {"since": endpoint["created_at"]}})
    server.settled(pending["id"])
    until(lambda: server.deliveries(missed["id"]), "a delivery of the missed event")
    server.settled(missed["id"])
    requests = receiver.seen("/disabled")[1:]
    tests = [request for request in requests if request.header("ackpost-test") == "true"]
    others = {request.header("webhook-id") for request in requests if request not in tests}
    assert (len(tests), others) == (1, {pending["id"], missed["id"]})


def test_a_gone_endpoint_is_disabled_with_all_it_had(server: Server, receiver: Receiver) -> None:
    """410 disables the endpoint, its waiting deliveries are dead, and 404 does not do that."""
    policy = {"retry": {"schedule_s": [600]}, "max_in_flight": 1}
    endpoint = server.endpoint(receiver.hook("/gone", "404,410"), "gone.now", policy=policy)
    first = server.publish("gone.now")
    receiver.wait("/gone")
    until(lambda: server.settled(first["id"], "pending")["last_error"] == "status", "the failure recorded")
    second = server.publish("gone.now")
    assert server.settled(second["id"], "dead")["reason"] == "gone"
    shown = until(lambda: _state_is(server, endpoint["id"], "disabled"), "the endpoint disabled")
    assert shown["state_reason"] == "gone"
    assert server.settled(first["id"], "dead")["reason"] in {"gone", "endpoint_disabled"}
    assert server.publish("gone.now")["deliveries"] == 0
    assert len(receiver.seen("/gone")) == 2


def _state_is(server: Server, endpoint_id: str, state: str) -> dict[str, str] | None:
    shown: dict[str, str] = server.get(f"/endpoints/{endpoint_id}")
    return shown if shown["state"] == state else None


def test_retry_after_is_kept_over_a_restart(own_server: Server, receiver: Receiver) -> None:
    """The endpoint waits as long as its answer asked for, also when the server was killed meanwhile."""
    server = own_server.start()
    server.endpoint(receiver.hook("/later", "429:retry-after=6,200"), "later.on", policy=SOON)
    event = server.publish("later.on")
    receiver.wait("/later")
    until(lambda: server.settled(event["id"], "pending")["attempt_count"] == 1, "the first attempt recorded")
    server.restart()
    second = server.publish("later.on")
    held = server.settled(second["id"], "pending")
    assert held["held_by"] == "retry_after"
    server.settled(event["id"])
    server.settled(second["id"])
    seen = receiver.seen("/later")
    assert seen[1].at_s - seen[0].at_s >= 5.9
    assert len(seen) == 3


def test_a_circuit_opens_probes_and_closes_again(server: Server, receiver: Receiver) -> None:
    """A failing endpoint gets nothing while its circuit is open, then one probe; success closes it, and it is told."""
    told = server.endpoint(
        receiver.hook("/told"), ["ackpost.endpoint.circuit_opened", "ackpost.endpoint.circuit_closed"]
    )
    circuit = {"failures": 2, "span_min_s": 0, "open_s": 1, "open_max_s": 1, "successes": 1}
    policy = {"retry": {"schedule_s": [0.05] * 20, "jitter_ratio": 0}, "circuit": circuit, "max_in_flight": 1}
    endpoint = server.endpoint(receiver.hook("/sick", "500*3,200"), "sick.one", policy=policy)
    path = f"/endpoints/{endpoint['id']}"
    event = server.publish("sick.one")
    receiver.wait("/sick", 2)
    opened = until(lambda: _circuit_is(server, path, "open"), "the circuit open")
    assert opened["opened_at"] is not None
    assert server.settled(event["id"], "pending")["held_by"] == "circuit"
    server.settled(event["id"])
    probes = [request.at_s for request in receiver.seen("/sick")]
    assert len(probes) == 4
    assert probes[2] - probes[1] >= 0.79
    assert probes[3] - probes[2] >= 0.79

    def closed() -> object:
        server.settled(server.publish("sick.one")["id"])
        return _circuit_is(server, path, "closed")

    until(closed, "the circuit closed")
    types = [json.loads(request.body)["type"].rpartition("_")[2] for request in receiver.wait("/told", 3)]
    assert types == ["opened", "opened", "closed"]
    for request in receiver.seen("/told"):
        check_standard(request, told["secret"])
        assert json.loads(request.body)["data"]["endpoint_id"] == endpoint["id"]


def _circuit_is(server: Server, path: str, state: str) -> dict[str, str] | None:
    circuit: dict[str, str] = server.get(path)["circuit"]
    return circuit if circuit["state"] == state else None


def test_a_test_call_waits_for_its_attempt(server: Server, receiver: Receiver) -> None:
    """A test is sent once with its mark, whatever filter and state say, and its attempt is answered within the wait."""
    endpoint = server.endpoint(receiver.hook("/tested", "503"), "never.published")
    path = f"/endpoints/{endpoint['id']}"
    server.post(f"{path}/pause")
    answer = server.post(f"{path}/test", {"data": {"n": 1.0}}, wait_s=10)
    assert (answer["attempt"]["status_code"], answer["attempt"]["trigger"]) == (503, "test")
    (request,) = receiver.seen("/tested")
    assert request.header("ackpost-test") == "true"
    assert json.loads(request.body)["type"] == "ackpost.test"
    check_standard(request, endpoint["secret"])
    assert server.get(path)["circuit"]["failures"] == 0
    receiver.hook("/tested")
    assert server.post(f"{path}/test", {}, wait_s=10)["attempt"]["outcome"] == "delivered"
    assert len(receiver.seen("/tested")) == 2


def test_redeliver_and_cancel(server: Server, receiver: Receiver) -> None:
    """Redelivering sends a delivered event again in a new round; cancelling stops retries for good."""
    policy = {"retry": {"schedule_s": [600] * 3}}
    server.endpoint(receiver.hook("/again", "200*2,500"), "again.and", policy=policy)
    event = server.publish("again.and")
    delivery = server.settled(event["id"])
    server.post(f"/events/{event['id']}/redeliver")
    again = until(lambda: _in_round(server, event["id"], 2), "the second round's end")
    assert (again["id"], again["attempt_count"]) == (delivery["id"], 2)
    attempts = server.get(f"/deliveries/{delivery['id']}/attempts", order="asc")["data"]
    assert [(one["number"], one["trigger"]) for one in attempts] == [(1, "schedule"), (2, "redeliver")]
    failing = server.publish("again.and")
    receiver.wait("/again", 3)
    until(lambda: server.settled(failing["id"], "pending")["attempt_count"] == 1, "the failure recorded")
    server.post(f"/events/{failing['id']}/redeliver")
    receiver.wait("/again", 4)
    server.post(f"/events/{failing['id']}/cancel")
    cancelled = server.settled(failing["id"], "cancelled")
    assert server.refused("POST", f"/deliveries/{cancelled['id']}/cancel").problem["code"] == "invalid_state"


def _in_round(server: Server, event_id: str, number: int) -> dict[str, object] | None:
    delivery: dict[str, object] = server.settled(event_id)
    return delivery if delivery["round"] == number else None


def test_announcements_go_to_who_asked_and_never_about_themselves(server: Server, receiver: Receiver) -> None:
    """A dead delivery is told to an endpoint that named it; when that telling dies, nobody is told of it."""
    server.endpoint(receiver.hook("/watcher", "400"), "ackpost.delivery.dead", policy=ONCE)
    server.endpoint(receiver.hook("/everything"), "*")
    server.endpoint(receiver.hook("/dies", "400"), "watched.event", policy=ONCE)
    event = server.publish("watched.event")

    def told() -> object:
        return [one for one in receiver.seen("/watcher") if event["id"] in one.body.decode()]

    until(told, "the death told")
    watched = {json.loads(one.body)["data"]["event_id"]: one.header("webhook-id") for one in receiver.seen("/watcher")}
    notice = watched[event["id"]]
    assert notice is not None
    until(lambda: [one for one in server.deliveries(notice) if one["status"] == "dead"], "the telling dead")
    marker = server.publish("watched.event")
    until(
        lambda: [one for one in receiver.seen("/watcher") if marker["id"] in one.body.decode()], "the next death told"
    )
    about = [json.loads(one.body)["data"]["event_id"] for one in receiver.seen("/watcher")]
    assert notice not in about
    assert not any(b'"type":"ackpost.' in one.body for one in receiver.seen("/everything"))
