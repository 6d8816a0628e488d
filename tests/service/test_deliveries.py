"""Listing what is held: the bound on one page's work, and where the next page goes on."""

from __future__ import annotations

from ackpost.ports.operations import Accept, NewEvent
from ackpost.ports.store import DeliveryFilter, Page
from ackpost.service.routing import target_of
from tests.api.world import World, run


async def _paused_last(world: World, before: int, held: int) -> None:
    """Make ``before`` free deliveries, newest first in lists, and under them ``held`` paused ones."""
    for uid in ("held", "free"):
        await world.endpoint(uid=uid)
    for uid, count in (("held", held), ("free", before)):
        endpoint = await world.store.endpoint_by_uid(world.default_tenant, uid)
        assert endpoint is not None
        routes = await world.services.router.routes(world.default_tenant)
        events = [NewEvent("a", b"1", targets=(target_of(endpoint),)) for _ in range(count)]
        await world.committer.submit(Accept(world.default_tenant, routes.version, events, world.clock.ms))
    await world.post("/v1/endpoints/held/pause")


def test_held_ones_are_found_behind_many_that_are_free() -> None:
    """More than one step of the scan is taken for one page."""

    async def scenario(world: World) -> None:
        await _paused_last(world, before=600, held=3)
        page = Page(limit=10)
        found, cut = await world.services.deliveries.page(world.default_tenant, DeliveryFilter(), page, ["paused"])
        assert (len(found), cut) == (3, None)

    run(scenario)


def test_a_page_whose_work_is_bounded_says_where_to_go_on() -> None:
    """An empty page with a place to go on from, instead of an endless scan; nothing is skipped on the way."""

    async def scenario(world: World) -> None:
        await _paused_last(world, before=30, held=3)
        world.store._scan_rows_max = 10
        found, cut, pages = 0, None, 0
        while True:
            page = Page(limit=10, after=cut)
            rows, cut = await world.services.deliveries.page(world.default_tenant, DeliveryFilter(), page, ["paused"])
            found += len(rows)
            pages += 1
            if cut is None:
                break
        assert (found, pages) == (3, 4)

    run(scenario)


def test_a_scan_over_very_many_rows_stops_by_itself() -> None:
    """Ten thousand rows are enough for one page, though each step of the store is short."""

    async def scenario(world: World) -> None:
        await _paused_last(world, before=10_100, held=1)
        page = Page(limit=1)
        found, cut = await world.services.deliveries.page(world.default_tenant, DeliveryFilter(), page, ["paused"])
        assert found == []
        assert cut is not None
        more = Page(limit=1, after=cut)
        found, cut = await world.services.deliveries.page(world.default_tenant, DeliveryFilter(), more, ["paused"])
        assert (len(found), cut) == (1, None)

    run(scenario)
