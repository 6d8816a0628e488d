"""Lists, pages, filters, and the engine's reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ackpost.core.decision import EndpointChange
from ackpost.core.model import Circuit
from ackpost.core.outcome import Outcome
from ackpost.ports.operations import Cancel, DeleteEndpoint, DeliveriesChanged, Done, ExpireData, NewEvent, Redeliver
from ackpost.ports.store import DeliveryFilter, EndpointHealth, EventFilter, Page, Work
from ackpost.testing.store_contract.world import BY_KEY, World, target_of

Reader = Callable[[Page], Awaitable[list[Any]]]
HOUR_MS = 3_600_000


async def _walk(read: Reader, page: Page) -> list[int]:
    """Read page after page to the end."""
    seen: list[int] = []
    while True:
        rows = await read(page)
        assert len(rows) <= page.limit
        if not rows:
            return seen
        assert not set(seen).intersection(row.position for row in rows), "rows came twice"
        seen += [row.position for row in rows]
        page = Page(page.limit, seen[-1], page.ascending, page.since_ms, page.until_ms)


async def check_pages_skip_and_repeat_nothing(world: World) -> None:
    """Every list, both ways, by pages of two, gives each row once, in the order of positions."""
    for number in range(5):
        await world.new_tenant(f"t{number}")
        endpoint = await world.endpoint(url=f"https://example.com/{number}")
        await world.job("replay", all=True)
    await world.publish(*(NewEvent("a", b"1") for _ in range(5)))
    ref = await world.first_due(endpoint)
    for _ in range(5):
        await world.record(world.result(ref, "retry", due_ms=world.now_ms))
        ref = next(found for found in await world.due(endpoint) if found.position == ref.position)
    store = world.store

    async def events(page: Page) -> list[Any]:
        return (await store.events(None, EventFilter(), page))[0]

    async def deliveries(page: Page) -> list[Any]:
        return (await store.deliveries(None, DeliveryFilter(), page))[0]

    async def attempts(page: Page) -> list[Any]:
        return await store.attempts(None, delivery=ref.position, endpoint=None, page=page)

    async def of_endpoint(page: Page) -> list[Any]:
        return await store.attempts(None, delivery=None, endpoint=endpoint.position, page=page)

    readers: list[tuple[Reader, int]] = [
        (store.tenants, 6), (lambda page: store.endpoints(None, page), 5), (lambda page: store.jobs(None, page), 5),
        (events, 5), (deliveries, 25), (attempts, 5), (of_endpoint, 5),
    ]  # fmt: skip
    for read, count in readers:
        rising = await _walk(read, Page(limit=2, ascending=True))
        assert len(rising) == count
        assert rising == sorted(set(rising))
        assert await _walk(read, Page(limit=2)) == rising[::-1]
        assert await _walk(read, Page(limit=count)) == rising[::-1]


async def check_pages_while_rows_arrive(world: World) -> None:
    """Newest first, what arrives meanwhile does not disturb; oldest first, it comes at the end."""
    for ascending in (False, True):
        before = [(await world.one()).position for _ in range(4)]
        present = [event.position for event in await world.all_events()]
        first, _ = await world.store.events(None, EventFilter(), Page(2, ascending=ascending))
        arrived = await world.one()
        seen = [event.position for event in first]

        async def read(page: Page) -> list[Any]:
            return (await world.store.events(None, EventFilter(), page))[0]

        seen += await _walk(read, Page(2, seen[-1], ascending))
        assert seen == ([*present, arrived.position] if ascending else present[::-1])
        assert set(before) <= set(seen)


async def check_spans(world: World) -> None:
    """``since`` is inclusive, ``until`` exclusive, in every list."""
    endpoint = await world.endpoint()
    times = []
    for _ in range(3):
        times.append(world.later(1000))
        await world.one()
        await world.deliver(await world.first_due(endpoint))
        await world.new_tenant(f"t{len(times)}")
        await world.job("replay", all=True)
    page = Page(since_ms=times[1], until_ms=times[2])
    store = world.store
    assert [event.created_at_ms for event in (await store.events(None, EventFilter(), page))[0]] == [times[1]]
    assert [row.created_at_ms for row in (await store.deliveries(None, DeliveryFilter(), page))[0]] == [times[1]]
    found = await store.attempts(None, delivery=None, endpoint=endpoint.position, page=page)
    assert [attempt.started_at_ms for attempt in found] == [times[1]]
    assert [tenant.uid for tenant in await store.tenants(page)] == ["t2"]
    assert [job.created_at_ms for job in await store.jobs(None, page)] == [times[1]]
    assert await store.endpoints(None, page) == []


async def check_event_filters(world: World) -> None:
    """Each condition alone and all together; types are patterns."""
    ends, other = await world.endpoint(event_types=("order.*",)), await world.endpoint(event_types=("order.paid",))
    made = (await world.one("order.made", key="k", uid="u", channels=("c", "d"))).position
    paid = (await world.one("order.paid", key="k")).position
    user = (await world.one("user.made", channels=("d",))).position
    last = (await world.one("order.made")).position
    await world.deliver(await world.first_due(ends))
    await world.die(await world.first_due(other))
    for conditions, expected in (
        ({}, [made, paid, user, last]),
        ({"types": ("order.*",)}, [made, paid, last]),
        ({"types": ("user.made", "order.paid")}, [paid, user]),
        ({"types": ("order",)}, []),
        ({"key": "k"}, [made, paid]),
        ({"uid": "u"}, [made]),
        ({"uid": "v"}, []),
        ({"channel": "d"}, [made, user]),
        ({"endpoint": other.position}, [paid]),
        ({"endpoint": ends.position}, [made, paid, last]),
        ({"statuses": ("unmatched",)}, [user]),
        ({"statuses": ("delivered", "dead")}, [made]),
        ({"statuses": ("pending",)}, [paid, last]),
        ({"key": "k", "types": ("order.paid",), "endpoint": other.position, "statuses": ("pending",)}, [paid]),
    ):
        found = [event.position for event in await world.all_events(world.tenant, **conditions)]
        assert found == expected, conditions
    shown = (await world.all_events(uid="u"))[0]
    assert (shown.data, shown.data_expired) == (None, False)


async def check_status_of_an_event(world: World) -> None:
    """pending while any is, then dead if any is, else delivered."""
    first, second = await world.endpoint(), await world.endpoint(url="https://example.org/")
    event = await world.one()
    assert (await world.event(event.position)).status == "pending"
    await world.die(await world.first_due(first))
    assert (await world.event(event.position)).status == "pending"
    await world.deliver(await world.first_due(second))
    assert (await world.event(event.position)).status == "dead"
    assert (await world.event(event.position)).delivery_counts == {"dead": 1, "delivered": 1}
    await world.run_job((await world.job("discard", all=True)).position)
    assert (await world.event(event.position)).status == "delivered"


async def check_deliveries_of_events(world: World) -> None:
    """The newest of each event, newest first, wherever they lie and when they were made; events without are absent."""
    first, second = await world.endpoint(), await world.endpoint(url="https://example.org/")
    third = await world.endpoint(url="https://example.net/", event_types=("other",))
    event, unmatched = (await world.one()).position, (await world.one("ackpost.none")).position
    await world.deliver(await world.first_due(first))
    await world.die(await world.first_due(second))
    await world.do(Redeliver(world.tenant, world.now_ms, event=event, endpoint=third.position), DeliveriesChanged)
    found = await world.store.deliveries_of_events([event, unmatched, 7], each_max=9)
    assert list(found) == [event]
    rows = found[event]
    assert [(row.endpoint, row.status) for row in rows] == [
        (third.position, "pending"), (second.position, "dead"), (first.position, "delivered"),
    ]  # fmt: skip
    assert rows == (await world.all_deliveries(event=event))[::-1]
    assert await world.store.deliveries_of_events([event], each_max=2) == {event: rows[:2]}


async def check_delivery_filters(world: World) -> None:
    """Each condition alone and together, over all states."""
    endpoint, other = await world.endpoint(policy=BY_KEY), await world.endpoint(event_types=("user.*",))
    events = (
        await world.publish(*(NewEvent("order.made", b"1", key="k") for _ in range(2)), NewEvent("user.x", b"1"))
    ).events
    rows = [row.position for row in await world.all_deliveries()]
    first, waiting, third, fourth = rows
    failed = await world.first_due(endpoint)
    await world.record(world.result(failed, "retry", due_ms=world.now_ms, outcome=Outcome("timeout")))
    await world.deliver(await world.first_due(other))
    await world.die(next(ref for ref in await world.due(endpoint) if ref.position == third))
    for conditions, expected in (
        ({}, rows),
        ({"endpoint": endpoint.position}, [first, waiting, third]),
        ({"event": events[2].position}, [third, fourth]),
        ({"statuses": ("pending",)}, [first, waiting]),
        ({"statuses": ("dead", "delivered")}, [third, fourth]),
        ({"reasons": ("permanent_failure",)}, [third]),
        ({"errors": ("timeout", "status")}, [first, third]),
        ({"errors": ("dns_error",)}, []),
        ({"status_codes": (500,)}, [third]),
        ({"status_codes": (200, 500)}, [third, fourth]),
        ({"waiting": True}, [waiting]),
        ({"waiting": False}, [first, third, fourth]),
        ({"key": "k"}, [first, waiting]),
        ({"types": ("user.*",)}, [third, fourth]),
        ({"types": ("order.made",), "endpoint": endpoint.position, "waiting": False}, [first]),
    ):
        found = [row.position for row in await world.all_deliveries(world.tenant, **conditions)]
        assert found == expected, conditions


async def check_endpoint_filters(world: World) -> None:
    """By state, circuit and url."""
    first = await world.endpoint(url="https://example.com/1")
    second = await world.endpoint(url="https://example.com/2")
    await world.set_state(second, "pause")
    await world.one()
    change = EndpointChange(circuit=Circuit("open"))
    await world.record(world.result(await world.first_due(first), "retry", due_ms=1, endpoint_change=change))
    for conditions, expected in (
        ({"states": ("paused", "disabled")}, [second]),
        ({"states": ("enabled", "paused")}, [second, first]),
        ({"circuits": ("open",)}, [first]),
        ({"circuits": ("closed", "half-open")}, [second]),
        ({"url": first.url}, [first]),
        ({"url": first.url, "states": ("paused",)}, []),
    ):
        found = await world.store.endpoints(world.tenant, Page(), **conditions)
        assert [endpoint.position for endpoint in found] == [endpoint.position for endpoint in expected]


async def check_scan_bound_gives_a_cursor(world: World) -> None:
    """A rare filter reads a bounded number of rows a page; following the cursor finds each row once."""
    small = await World.begin(world.harness, scan_rows_max=5)
    world.stores += small.stores
    endpoint = await small.endpoint()
    wanted = []
    for number in range(23):
        type = "rare" if number in {3, 4, 17} else "common"
        wanted += [(await small.one(type)).position] * (type == "rare")
    await small.deliver((await small.due(endpoint))[3])
    store = small.store

    async def events(page: Page) -> tuple[list[Any], int | None]:
        return await store.events(None, EventFilter(types=("rare",)), page)

    async def deliveries(page: Page) -> tuple[list[Any], int | None]:
        return await store.deliveries(None, DeliveryFilter(types=("rare",)), page)

    for read, expected in ((events, wanted), (deliveries, [position + 1 for position in wanted])):
        for ascending in (True, False):
            found: list[int] = []
            cuts, page = 0, Page(2, None, ascending)
            while True:
                rows, cut = await read(page)
                assert not set(found).intersection(row.position for row in rows), "rows came twice"
                found += [row.position for row in rows]
                cuts += cut is not None
                if cut is None and len(rows) < page.limit:
                    break
                page = Page(2, cut if cut is not None else found[-1], ascending)
            assert found == (expected if ascending else expected[::-1])
            assert cuts >= 2


async def check_latest_event_of_a_key(world: World) -> None:
    """The newest of a key, of the wanted types, with data."""
    await world.one("a.x", key="k")
    newest_a = await world.one("a.y", key="k")
    newest = await world.one("b", key="k")
    await world.one("b", key="other")
    for types, expected in ((None, newest), (("a.*",), newest_a), (("b", "a.x"), newest)):
        found = await world.store.latest_event(world.tenant, "k", types)
        assert found is not None
        assert (found.position, found.data) == (expected.position, b'{"n":1}')
    assert await world.store.latest_event(world.tenant, "k", ("zzz",)) is None
    assert await world.store.latest_event(world.tenant, "none", None) is None


async def check_stats(world: World) -> None:
    """Deliveries counted by status for each value; tests are left out; a span begins inclusive."""
    endpoint, other = await world.endpoint(), await world.endpoint(event_types=("b",))
    await world.publish(NewEvent("a", b"1"), NewEvent("a", b"2"), NewEvent("b", b"3"))
    first, second, third = await world.due(endpoint)
    await world.deliver(first)
    await world.die(second)
    since_ms = world.later(1000)
    await world.one("c")
    await world.one("ackpost.test", targets=(target_of(endpoint),), trigger="test")
    store, one, two = world.store, str(endpoint.position), str(other.position)
    assert third.position
    by_endpoint = [(one, {"delivered": 1, "dead": 1, "pending": 2}), (two, {"pending": 1})]
    assert await store.stats(world.tenant, "endpoint", None) == by_endpoint
    by_type = [("a", {"delivered": 1, "dead": 1}), ("b", {"pending": 2}), ("c", {"pending": 1})]
    assert await store.stats(None, "type", None) == by_type
    assert await store.stats(world.tenant, "reason", None) == [("permanent_failure", {"dead": 1})]
    assert await store.stats(world.tenant, "error", None) == [("status", {"dead": 1})]
    assert await store.stats(world.tenant, "type", since_ms) == [("c", {"pending": 1})]


async def check_health(world: World) -> None:
    """Backlog, success and failure of the last hour, latencies newest first, without tests."""
    endpoint = await world.endpoint(policy=BY_KEY)
    position = endpoint.position
    empty = EndpointHealth(0, None, 0, 0, [], None, None)
    assert await world.store.endpoint_health(position, world.now_ms) == empty
    await world.publish(*(NewEvent("a", b"1") for _ in range(3)), *(NewEvent("a", b"1", key="k") for _ in range(2)))
    refs = await world.due(endpoint)
    await world.record(world.result(refs[0], "delivered", outcome=Outcome("delivered", 200, duration_ms=1.0)))
    first_ms = world.now_ms
    world.later(1)
    good = world.result(refs[1], "delivered", outcome=Outcome("delivered", 200, duration_ms=2.5))
    due_ms = world.now_ms - 5
    bad = world.result(refs[2], "retry", due_ms=due_ms, outcome=Outcome("timeout", duration_ms=7.0))
    await world.record(good, bad)
    await world.one("ackpost.test", targets=(target_of(endpoint),), trigger="test")
    test = next(ref for ref in await world.due(endpoint) if ref.trigger == "test")
    await world.record(world.result(test, "discarded"))
    health = await world.store.endpoint_health(position, first_ms + HOUR_MS)
    assert (health.pending, health.oldest_due_ms) == (3, due_ms)
    assert (health.good_1h, health.bad_1h, health.latencies_ms) == (2, 1, [7.0, 2.5, 1.0])
    assert health.last_success_ms == first_ms + 1
    assert health.last_failure is not None
    assert (health.last_failure.code, health.last_failure.delivery) == ("timeout", refs[2].position)
    health = await world.store.endpoint_health(position, first_ms + 1 + HOUR_MS)
    assert (health.good_1h, health.bad_1h) == (1, 1)
    health = await world.store.endpoint_health(position, first_ms + 2 + HOUR_MS)
    assert (health.good_1h, health.bad_1h, health.latencies_ms) == (0, 0, [])
    assert health.last_success_ms == first_ms + 1


# ---------------------------------------------------------------- the engine's


async def check_work_is_found(world: World) -> None:
    """Each endpoint with due-able rows, by class, with the earliest due time; waiting rows do not count."""
    first, second, idle = [await world.endpoint(event_types=(name,), policy=BY_KEY) for name in ("a", "b", "c")]
    assert await world.store.scan_work(after_endpoint=0, limit=10) == []
    assert await world.store.oldest_due_ms() is None
    assert await world.store.newest_event_ms() is None
    start_ms = world.now_ms
    await world.publish(NewEvent("a", b"1", key="k"), NewEvent("a", b"1", key="k"), NewEvent("a", b"1"))
    world.later(10)
    await world.one("b")
    await world.record(world.result((await world.due(first))[0], "retry", due_ms=start_ms + 500))
    await world.deliver(await world.first_due(second))
    await world.do(
        Redeliver(world.tenant, world.now_ms, delivery=(await world.all_deliveries())[3].position), DeliveriesChanged
    )
    works = [
        Work(first.position, world.tenant, 0, start_ms),
        Work(first.position, world.tenant, 1, start_ms + 500),
        Work(second.position, world.tenant, 2, world.now_ms),
    ]
    assert await world.store.scan_work(after_endpoint=0, limit=10) == works
    assert await world.store.scan_work(after_endpoint=0, limit=1) == works[:2]
    assert await world.store.scan_work(after_endpoint=0, limit=2) == works, "limit counts endpoints"
    assert await world.store.scan_work(after_endpoint=first.position, limit=10) == works[2:]
    assert await world.store.scan_work(after_endpoint=second.position, limit=10) == []
    assert await world.due(idle) == []
    assert await world.store.oldest_due_ms() == start_ms
    assert await world.store.newest_event_ms() == world.now_ms
    assert await world.store.pending_counts() == {"due": 3, "waiting": 1}
    both = [first.position, second.position, idle.position]
    assert await world.store.due_counts(both, rows_max=10) == dict(zip(both, (2, 1, 0), strict=True))
    assert await world.store.due_counts(both, rows_max=1) == dict(zip(both, (1, 1, 0), strict=True))
    assert await world.store.due_counts([], rows_max=1) == {}


async def check_windows_go_by_due_time(world: World) -> None:
    """A window continues after (due, position) and is bounded; each class has its own."""
    endpoint = await world.endpoint()
    await world.publish(*(NewEvent("a", b"1") for _ in range(6)))
    refs = await world.due(endpoint)
    dues = [world.now_ms + 30, world.now_ms + 10, world.now_ms + 20, world.now_ms + 10]
    pairs = list(zip(refs[:4], dues, strict=True))
    await world.record(*(world.result(ref, "retry", due_ms=due_ms) for ref, due_ms in pairs))
    expected = [refs[1].position, refs[3].position, refs[2].position, refs[0].position]
    load = world.store.load_window
    assert [ref.position for ref in await load(endpoint.position, 1, after=None, limit=9)] == expected
    window = await load(endpoint.position, 1, after=None, limit=1)
    while len(window) < 4:
        last = window[-1]
        more = await load(endpoint.position, 1, after=(last.due_ms, last.position), limit=1)
        assert len(more) == 1, "the window ended early"
        window += more
    assert [ref.position for ref in window] == expected
    first = [ref.position for ref in await load(endpoint.position, 0, after=None, limit=9)]
    assert first == [ref.position for ref in refs[4:]]
    assert await load(endpoint.position, 2, after=None, limit=9) == []


async def check_work_of_deleted_endpoints_is_still_seen(world: World) -> None:
    """Rows of a deleted endpoint are there until its job has ended them; the endpoint is not."""
    endpoint = await world.endpoint()
    await world.one()
    deleted = await world.do(DeleteEndpoint(world.tenant, endpoint.position, world.now_ms), Done)
    assert len(await world.store.scan_work(after_endpoint=0, limit=9)) == 1
    assert await world.store.load_endpoints([endpoint.position]) == {}
    await world.run_job(deleted.position)
    assert await world.store.scan_work(after_endpoint=0, limit=9) == []


async def check_reads_share_nothing_with_the_store(world: World) -> None:
    """Changing what was read changes nothing that is stored."""
    endpoint = await world.endpoint(metadata={"a": {"b": 1}})
    await world.one()
    read = await world.endpoint_now(endpoint)
    read.metadata["a"]["b"] = 2
    (ref,) = await world.due(endpoint)
    ref.number = 9
    event = (await world.all_events())[0]
    event.delivery_counts["pending"] = 7
    assert await world.endpoint_now(endpoint) == endpoint
    assert (await world.due(endpoint))[0].number == 0
    assert (await world.all_events())[0].delivery_counts == {"pending": 1}


async def check_unknown_things_read_as_none(world: World) -> None:
    """Reading what is not there gives None or nothing."""
    store = world.store
    for found in (
        await store.tenant(5), await store.tenant_by_uid("x"), await store.routing(5), await store.endpoint(None, 5),
        await store.endpoint_by_uid(world.tenant, "x"), await store.endpoint_version(5, 1), await store.event(None, 5),
        await store.event_by_uid(world.tenant, "x"), await store.delivery(None, 5), await store.attempt(None, 5, 6),
        await store.job(None, 5),
    ):  # fmt: skip
        assert found is None
    assert await store.load_window(5, 0, after=None, limit=5) == []
    assert await store.load_payloads([5]) == {}
    event = await world.one()
    await world.do(Cancel(world.tenant, world.now_ms, event=event.position), DeliveriesChanged)
    await world.do(ExpireData(world.tenant, event.position, world.now_ms), Done)
    assert (await world.event(event.position)).data is None
