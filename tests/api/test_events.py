"""Reading events, and moving all deliveries of one by hand."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from ackpost.core.times import rfc3339_ms
from tests.api.world import World, run


async def _ids(world: World, query: str) -> list[str]:
    answer = await world.get(f"/v1/events{query}")
    assert answer.status == 200, answer
    return [event["id"] for event in answer.json["data"]]


def test_filters_divide_the_list() -> None:
    """For each filter the union over its values is the whole list; comma lists mean any of (A146)."""

    async def test(world: World) -> None:
        first = await world.endpoint(event_types=["order.*"], channels=["eu"])
        made = [
            await world.event("order.created", channels=["eu"], key="k1", uid="u1"),
            await world.event("order.paid", channels=["us"], key="k2"),
            await world.event("user.created", key="k1"),
        ]
        made.reverse()
        assert await _ids(world, "") == made
        assert await _ids(world, "?order=asc") == made[::-1]
        assert await _ids(world, "?type=order.*") == made[1:]
        assert await _ids(world, "?type=order.paid,user.created") == made[:2]
        assert await _ids(world, "?type=*") == made
        assert await _ids(world, "?key=k1") == [made[0], made[2]]
        assert await _ids(world, "?uid=u1") == [made[2]]
        assert await _ids(world, "?channel=us") == [made[1]]
        assert await _ids(world, "?status=pending") == [made[2]]
        assert await _ids(world, "?status=unmatched") == made[:2]
        assert await _ids(world, "?status=pending,unmatched,dead,delivered") == made
        assert await _ids(world, f"?endpoint_id={first['id']}") == [made[2]]
        assert await _ids(world, "?type=nothing") == []

    run(test)


@pytest.mark.parametrize("path", ["/v1/events/{event}", "/v1/events"])
def test_an_event_does_not_contradict_its_deliveries(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery that ends between the reading of an event and that of its deliveries counts as ended in both."""

    async def test(world: World) -> None:
        await world.endpoint()
        event = await world.event()
        [row] = await world.pending()
        read = world.store.deliveries_of_events

        async def ended_meanwhile(*args: Any, **named: Any) -> Any:
            monkeypatch.undo()
            await world.attempted(row)
            return await read(*args, **named)

        monkeypatch.setattr(world.store, "deliveries_of_events", ended_meanwhile)
        shown = (await world.get(path.format(event=event))).json
        shown = shown["data"][0] if path == "/v1/events" else shown
        assert (shown["status"], shown["delivery_counts"]) == ("delivered", {"delivered": 1})
        assert [one["status"] for one in shown["deliveries"]] == ["delivered"]

    run(test)


def test_a_span_of_time_includes_its_start_and_not_its_end() -> None:
    """``since`` is inclusive, ``until`` exclusive, whatever zone they are written in."""

    async def test(world: World) -> None:
        made, times = [], []
        for _ in range(3):
            made.append(await world.event())
            times.append(world.clock.ms)
            world.clock.forward(1)
        assert await _ids(world, f"?since={rfc3339_ms(times[1])}") == made[:0:-1]
        assert await _ids(world, f"?until={rfc3339_ms(times[1])}") == made[:1]
        zoned = rfc3339_ms(times[1] + 7_200_000).replace("Z", "+02:00")
        assert await _ids(world, f"?since={quote(zoned)}") == made[:0:-1]
        answer = await world.get(f"/v1/events?since={zoned}")
        assert (answer.status, answer.locs) == (422, [("query", "since")])
        assert "%2B" in answer.json["errors"][0]["message"]

    run(test)


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_pages_lead_forth_and_back_while_rows_arrive(order: str, limit: int) -> None:
    """Nothing is skipped or repeated, and the way back shows the same rows (A143)."""

    async def test(world: World) -> None:
        made = [await world.event() for _ in range(7)]
        expected = made if order == "asc" else made[::-1]
        pages: list[Any] = []
        query = f"?order={order}&limit={limit}"
        after = ""
        while True:
            page = (await world.get(f"/v1/events{query}{after}")).json
            pages.append(page)
            if order == "desc":
                await world.event("late")
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        assert [event["id"] for page in pages for event in page["data"]] == expected
        assert pages[0]["previous"] is None
        for index in range(len(pages) - 1, 0, -1):
            back = (await world.get(f"/v1/events{query}&after={pages[index]['previous']}")).json
            assert [event["id"] for event in back["data"]] == [event["id"] for event in pages[index - 1]["data"]]
            assert back["next"] is not None

    run(test)


@pytest.mark.parametrize(
    ("query", "loc"),
    [
        ("limit=0", "limit"),
        ("limit=251", "limit"),
        ("limit=x", "limit"),
        ("order=up", "order"),
        ("after=x", "after"),
        ("after=bjEyMzQ1Njc4OTBhYmNkZWYxMjM", "after"),
        ("since=yesterday", "since"),
        ("until=2026-13-01T00:00:00Z", "until"),
        ("status=lost", "status"),
        ("status=pending,", "status"),
        ("type=a..b", "type"),
        ("type=", "type"),
        ("endpoint_id=nothing", "endpoint_id"),
    ],
)
def test_a_wrong_parameter_is_refused_by_name(query: str, loc: str) -> None:
    """422 and the parameter's place."""

    async def test(world: World) -> None:
        answer = await world.get(f"/v1/events?{query}")
        assert (answer.status, answer.code, answer.locs) == (422, "invalid", [("query", loc)]), answer

    run(test)


def test_an_event_is_found_by_its_uid_too() -> None:
    """The publisher's own id works in paths; no other tenant's does."""

    async def test(world: World) -> None:
        event = await world.event(uid="order-1", metadata={"a": [1]})
        shown = (await world.get("/v1/events/order-1")).json
        assert (shown["id"], shown["uid"], shown["metadata"], shown["data"]) == (event, "order-1", {"a": [1]}, {"n": 1})
        assert (await world.get("/v1/events/order-1/data")).body == b'{"n": 1}'
        other = await world.make_tenant("b")
        await world.make_key("b-admin", "admin", other)
        assert (await world.get("/v1/events/order-1", key="b-admin")).status == 404
        for name in ("evt_00000000000000000000000000", "evt_x", "nothing", event[:-1], f"dlv{event[3:]}"):
            assert (await world.get(f"/v1/events/{name}")).code == "not_found"

    run(test)


def test_data_is_for_managers() -> None:
    """Publishers and readers see the event without its data, and may not fetch that."""

    async def test(world: World) -> None:
        event = await world.event(key="k")
        for role in ("operator", "admin"):
            assert (await world.get(f"/v1/events/{event}", key=role)).json["data"] == {"n": 1}
        for role in ("publisher", "reader"):
            for path in (f"/v1/events/{event}", "/v1/events/latest?key=k"):
                shown = (await world.get(path, key=role)).json
                assert shown["id"] == event
                assert "data" not in shown
            assert (await world.get(f"/v1/events/{event}/data", key=role)).status == 403
        assert "data" not in (await world.get("/v1/events")).json["data"][0]

    run(test)


def test_the_newest_event_of_a_key_is_found() -> None:
    """Of certain types, if asked so."""

    async def test(world: World) -> None:
        first = await world.event("order.created", key="k")
        second = await world.event("order.paid", key="k")
        assert (await world.get("/v1/events/latest?key=k")).json["id"] == second
        assert (await world.get("/v1/events/latest?key=k&type=order.created")).json["id"] == first
        assert (await world.get("/v1/events/latest?key=none")).status == 404
        answer = await world.get("/v1/events/latest")
        assert (answer.status, answer.locs) == (422, [("query", "key")])

    run(test)


def test_removed_data_is_gone_everywhere() -> None:
    """410 from then on; the event stays, its pending delivery is dead."""

    async def test(world: World) -> None:
        await world.endpoint()
        event = await world.event()
        assert (await world.delete(f"/v1/events/{event}/data")).status == 204
        answer = await world.get(f"/v1/events/{event}/data")
        assert (answer.status, answer.code) == (410, "data_expired")
        shown = (await world.get(f"/v1/events/{event}")).json
        assert shown["data_expired"] is True
        assert "data" not in shown
        assert (shown["status"], shown["deliveries"][0]["status"]) == ("dead", "dead")
        assert (await world.post(f"/v1/events/{event}/redeliver")).code == "data_expired"

    run(test)


def test_routing_says_why_an_endpoint_got_an_event_or_not() -> None:
    """One line for each endpoint, the deleted one that had it included."""

    async def test(world: World) -> None:
        had = await world.endpoint(event_types=["order.*"])
        gone = await world.endpoint()
        other_type = await world.endpoint(event_types=["user.*"])
        other_channel = await world.endpoint(channels=["eu"])
        later_filter = await world.endpoint(event_types=["nothing"])
        event = await world.event()
        world.clock.forward(1)
        newer = await world.endpoint()
        await world.patch(f"/v1/endpoints/{later_filter['id']}", {"event_types": ["*"]})
        await world.delete(f"/v1/endpoints/{gone['id']}")
        lines = (await world.get(f"/v1/events/{event}/routing")).json["data"]
        assert {line["endpoint_id"]: line["reason"] for line in lines} == {
            had["id"]: "has_delivery",
            gone["id"]: "has_delivery",
            other_type["id"]: "type_not_matched",
            other_channel["id"]: "channel_not_shared",
            later_filter["id"]: "filter_changed",
            newer["id"]: "endpoint_is_newer",
        }
        assert all((line["delivery_id"] is not None) == (line["reason"] == "has_delivery") for line in lines)

    run(test)


def test_an_event_is_sent_again_and_stopped() -> None:
    """Redeliver begins new rounds, also at an endpoint that never had it; cancel ends what is pending."""

    async def test(world: World) -> None:
        first = await world.endpoint()
        event = await world.event()
        [row] = await world.pending()
        await world.failed(row)
        late = await world.endpoint(uid="late")
        answer = await world.post(f"/v1/events/{event}/redeliver", idempotency_key="r")
        assert answer.status == 202
        assert len(answer.json["deliveries"]) == 1
        again = await world.post(f"/v1/events/{event}/redeliver", idempotency_key="r")
        assert again.body == answer.body
        added = await world.post(f"/v1/events/{event}/redeliver", {"endpoint_id": "late"})
        assert added.status == 202
        deliveries = (await world.get(f"/v1/events/{event}")).json["deliveries"]
        assert {one["endpoint_id"]: one["status"] for one in deliveries} == {
            first["id"]: "pending",
            late["id"]: "pending",
        }
        stopped = await world.post(f"/v1/events/{event}/cancel")
        assert (stopped.status, len(stopped.json["deliveries"])) == (202, 2)
        counts = (await world.get(f"/v1/events/{event}")).json["delivery_counts"]
        assert {name: count for name, count in counts.items() if count} == {"cancelled": 2}
        answer = await world.post(f"/v1/events/{event}/redeliver", {"endpoint": "late"})
        assert (answer.status, answer.locs) == (422, [("body", "endpoint")])

    run(test)
