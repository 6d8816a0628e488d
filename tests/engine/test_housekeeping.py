"""The node's loops: poll, revs, lease, jobs, retention, the watch over the wall clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from ackpost.core.model import Job
from ackpost.engine.housekeeping import CLOCK_STEP_QUIET_MS, DAY_MS, Housekeeping, Retention
from ackpost.errors import StoreBusy, StoreLocked, StoreOutcomeUnknown
from ackpost.ports import operations as ops
from tests.engine.rig import Rig, answer, play


def _keep_house(story: Callable[[Rig, Housekeeping], Awaitable[None]]) -> None:
    """Play a story with the loops running; they end with it."""

    async def whole(rig: Rig) -> None:
        incarnation = rig.writer._incarnation
        house = Housekeeping(
            rig.store, rig.writer, rig.engine, rig, rig.told, node="rig", incarnation=incarnation, lease_ms=20_000,
            retention=Retention(events_days=30, dead_letters_days=90, keys_days=400), stored_ms=rig.now_ms(),
        )  # fmt: skip
        house.start()
        await story(rig, house)
        await house.stop()
        assert all(task.done() for task in house._tasks)

    play(whole)


class Seen:
    """Watches what is committed, and may refuse it."""

    def __init__(self, rig: Rig) -> None:
        self._commit = rig.store.commit
        self.operations: list[Any] = []
        self.fault: Exception | None = None
        rig.store.commit = self.commit

    async def commit(self, operations: Any) -> Any:
        """Note and pass on."""
        if self.fault is not None:
            raise self.fault
        self.operations.extend(operations)
        return await self._commit(operations)

    def of(self, kind: type) -> list[Any]:
        """Operations of one kind."""
        return [one for one in self.operations if isinstance(one, kind)]


def test_the_poll_finds_what_a_dead_process_left() -> None:
    """Rows in the store are delivered within a poll, though nobody tells of them."""

    async def story(rig: Rig, _: Housekeeping) -> None:
        endpoint = await rig.endpoint()
        rig.engine.hand_off = lambda _: None  # type: ignore[method-assign,assignment] # the hints are lost
        await rig.publish(endpoint, count=10)
        await rig.until(lambda: len(rig.wire.requests) == 10, within_s=2.5)

    _keep_house(story)


def test_a_change_by_others_is_found_within_a_second() -> None:
    """Paused in the store without a hint (another node's API): the comparison of revs stops the sending."""

    async def story(rig: Rig, _: Housekeeping) -> None:
        endpoint = await rig.endpoint(max_in_flight=1)
        await rig.publish(endpoint, count=1000)
        await rig.until(lambda: len(rig.wire.requests) > 10)
        now_ms = rig.now_ms()
        await rig.store.commit([ops.SetEndpointState(endpoint.tenant, endpoint.position, "pause", now_ms)])
        await rig.pass_s(10)
        assert rig.wire.requests[-1].at_ms - now_ms <= 1100

    _keep_house(story)


def test_an_end_of_a_pause_that_nobody_told_of_is_found() -> None:
    """Resumed in the store without a hint, while nothing of the endpoint is in memory: it goes on."""

    async def story(rig: Rig, _: Housekeeping) -> None:
        endpoint = await rig.endpoint()
        await rig.state(endpoint, "pause")
        await rig.publish(endpoint, count=3)
        await rig.pass_s(10)
        await rig.store.commit([ops.SetEndpointState(endpoint.tenant, endpoint.position, "resume", rig.now_ms())])
        await rig.until(lambda: len(rig.wire.requests) == 3, within_s=2.5)

    _keep_house(story)


def test_an_idle_endpoint_is_looked_at_before_work_is_found_for_it() -> None:
    """Paused in the store without a hint while it had nothing to do: what the poll finds for it is not sent."""

    async def story(rig: Rig, _: Housekeeping) -> None:
        endpoint = await rig.endpoint()
        await rig.publish(endpoint)
        await rig.until(lambda: len(rig.wire.requests) == 1)
        await rig.pass_s(3)
        await rig.store.commit([ops.SetEndpointState(endpoint.tenant, endpoint.position, "pause", rig.now_ms())])
        rig.engine.hand_off = lambda _: None  # type: ignore[method-assign,assignment] # the hints are lost
        await rig.publish(endpoint)
        await rig.pass_s(10)
        assert len(rig.wire.requests) == 1

    _keep_house(story)


def test_the_lease_is_renewed_and_sending_follows_it() -> None:
    """Nothing is sent before the first renewal; while renewals fail sending ends before the lease does."""

    async def story(rig: Rig, _: Housekeeping) -> None:
        assert rig.engine.lease_until_ms == 0
        seen = Seen(rig)
        endpoint = await rig.endpoint()
        await rig.pass_s(60)
        renewals = seen.of(ops.RenewLease)
        assert 11 <= len(renewals) <= 13
        seen.fault = StoreBusy("busy")
        failed_ms = rig.now_ms()
        await rig.pass_s(18)
        assert rig.engine.lease_until_ms - failed_ms <= 17_500
        seen.fault = None
        await rig.publish(endpoint)
        await rig.until(lambda: len(rig.wire.requests) == 1, within_s=2)

    _keep_house(story)


def test_a_lost_lease_ends_the_node() -> None:
    """Another node owns the store: the node is told to stop."""

    async def story(rig: Rig, _: Housekeeping) -> None:
        await rig.pass_s(1)
        Seen(rig).fault = StoreLocked("taken")
        await rig.pass_s(6)
        assert isinstance(rig.fatal[0], StoreLocked)

    _keep_house(story)


def test_an_unexpected_error_in_a_loop_ends_the_node() -> None:
    """A loop that dies unseen would leave rows unsent for ever."""

    async def story(rig: Rig, _: Housekeeping) -> None:
        async def broken(**_: object) -> None:
            raise ZeroDivisionError

        rig.store.scan_work = broken
        await rig.pass_s(2)
        assert isinstance(rig.fatal[0], ZeroDivisionError)

    _keep_house(story)


def test_a_store_in_trouble_is_polled_again() -> None:
    """Failing reads end no loop."""

    async def story(rig: Rig, _: Housekeeping) -> None:
        endpoint = await rig.endpoint()
        await rig.pass_s(1)
        scan = rig.store.scan_work

        async def broken(**_: object) -> None:
            raise StoreBusy("busy")

        rig.store.scan_work = broken
        rig.engine.hand_off = lambda _: None  # type: ignore[method-assign,assignment] # the hints are lost
        await rig.publish(endpoint)
        await rig.pass_s(10)
        assert rig.wire.requests == []
        rig.store.scan_work = scan
        await rig.until(lambda: len(rig.wire.requests) == 1, within_s=3)

    _keep_house(story)


async def _replay(rig: Rig, tenant: int) -> int:
    params = msgspec.to_builtins(ops.JobSelector(all=True))
    saved = await rig.submit(ops.CreateJob(Job(position=0, tenant=tenant, kind="replay", params=params)))
    return int(saved.job.position)


def test_a_replay_goes_out_in_steps_and_ends() -> None:
    """Five hundred dead letters are made due in steps and delivered; the job counts them and is done."""

    async def story(rig: Rig, _: Housekeeping) -> None:
        rig.wire.reply = lambda _: (0.001, answer(400))
        endpoint = await rig.endpoint(
            circuit={"enabled": False}, retry={"max_attempts": 1, "max_age_s": 60}, max_in_flight=50
        )
        deliveries = await rig.publish(endpoint, count=500)
        await rig.until(lambda: len(rig.wire.requests) == 500)
        await rig.pass_s(1)
        rig.wire.reply = lambda _: (0.001, answer())
        seen = Seen(rig)
        job = await _replay(rig, endpoint.tenant)
        await rig.until(lambda: len(rig.wire.requests) == 1000)
        await rig.pass_s(2)
        assert {await rig.status(delivery) for delivery in deliveries} == {("delivered", None)}
        stored = await rig.store.job(None, job)
        assert (stored.state, stored.done, stored.failed) == ("done", 500, 0)
        assert len(seen.of(ops.StepJob)) >= 3
        assert rig.told.noted("job.ended")

    _keep_house(story)


def test_a_cancelled_job_stops_between_its_steps() -> None:
    """What it did stays done; it is not stepped again (R37)."""

    async def story(rig: Rig, _: Housekeeping) -> None:
        rig.wire.reply = lambda _: (0.001, answer(400))
        endpoint = await rig.endpoint(retry={"max_attempts": 1, "max_age_s": 60}, circuit={"enabled": False})
        await rig.publish(endpoint, count=10)
        await rig.until(lambda: len(rig.wire.requests) == 10)
        await rig.pass_s(0.2)
        job = await _replay(rig, endpoint.tenant)
        await rig.submit(ops.CancelJob(endpoint.tenant, job, rig.now_ms()))
        await rig.pass_s(5)
        assert len(rig.wire.requests) == 10
        assert (await rig.store.job(None, job)).state == "cancelled"

    _keep_house(story)


def test_an_end_of_a_reordering_that_nobody_told_of_is_found() -> None:
    """The answer to the job's last step was lost: the endpoint is not held back for ever."""

    async def story(rig: Rig, _: Housekeeping) -> None:
        endpoint = await rig.endpoint()
        commit, lost = rig.store.commit, list[Any]()

        async def forgetful(operations: Any) -> Any:
            replies = await commit(operations)
            if any(isinstance(one, ops.StepJob) for one in operations) and not lost:
                lost.append(replies)
                raise StoreOutcomeUnknown("gone")
            return replies

        rig.store.commit = forgetful
        changed = await rig.fresh(endpoint)
        changed.policy = {"ordering": "by-key"}
        await rig.submit(ops.ReplaceEndpoint(changed, changed.rev, rig.now_ms()))
        await rig.pass_s(5)
        assert lost
        await rig.publish(endpoint, key="k")
        await rig.until(lambda: len(rig.wire.requests) == 1, within_s=2)

    _keep_house(story)


def test_retention_counts_back_from_the_newest_event() -> None:
    """A clock that is far ahead removes nothing that was accepted lately; steps repeat while there is more."""

    async def story(rig: Rig, _: Housekeeping) -> None:
        seen = Seen(rig)
        await rig.pass_s(70)
        assert seen.of(ops.Retain) == [], "nothing was ever accepted"
        await rig.publish(await rig.endpoint())
        newest_ms = rig.now_ms()
        await rig.pass_s(DAY_MS / 12 / 1000)
        last = seen.of(ops.Retain)[-1]
        assert last.events_before_ms == newest_ms - 30 * DAY_MS
        assert last.dead_before_ms == newest_ms - 90 * DAY_MS
        assert last.keys_before_ms == newest_ms - 400 * DAY_MS

    _keep_house(story)


def test_what_the_store_warns_of_is_told_once_and_so_is_its_end() -> None:
    """A warning that stays is one note, its end another."""

    async def story(rig: Rig, house: Housekeeping) -> None:
        warning: str | None = "the log is long"
        house._store_warning = lambda: warning
        await rig.pass_s(5)
        warning = None
        await rig.pass_s(5)
        told = [note for note in rig.told.notes if note[0].startswith("store.warning")]
        assert told == [
            ("store.warning", {"reason": "the log is long"}),
            ("store.warning_over", {"reason": "the log is long"}),
        ]

    _keep_house(story)


def test_a_clock_that_is_years_ahead_at_the_start_makes_nothing_old() -> None:
    """One event accepted under a wrong clock moves the present by no more than the time that passed, twice."""

    async def story(rig: Rig, _: Housekeeping) -> None:
        seen = Seen(rig)
        endpoint = await rig.endpoint()
        await rig.publish(endpoint)
        first_ms = rig.now_ms()
        await rig.pass_s(61)
        right_ms = rig.now_ms
        rig.now_ms = lambda: right_ms() + 3650 * DAY_MS  # type: ignore[method-assign] # the process started like that
        await rig.publish(endpoint)
        assert await rig.store.newest_event_ms() == rig.now_ms()
        await rig.pass_s(3600)
        last = seen.of(ops.Retain)[-1]
        assert first_ms < last.events_before_ms + 30 * DAY_MS <= first_ms + 2 * (3600 + 61) * 1000
        rig.wall_s = lambda: right_ms() // 1000  # type: ignore[method-assign] # somebody sets the clock
        await rig.pass_s(3600)
        last = seen.of(ops.Retain)[-1]
        assert last.events_before_ms + 30 * DAY_MS <= right_ms()

    _keep_house(story)


def test_the_first_event_under_a_wrong_clock_is_no_beginning() -> None:
    """What was stored when the process began counts, not what it stored itself before retention first looked."""

    async def story(rig: Rig, _: Housekeeping) -> None:
        seen = Seen(rig)
        right_ms = rig.now_ms
        began_ms = right_ms()
        rig.now_ms = lambda: right_ms() + 3650 * DAY_MS  # type: ignore[method-assign] # the process started like that
        await rig.publish(await rig.endpoint())
        await rig.pass_s(61)
        assert seen.of(ops.Retain)[-1].events_before_ms + 30 * DAY_MS <= began_ms + 2 * 61_000

    _keep_house(story)


def test_a_stepped_wall_clock_is_told_and_stops_retention_for_a_while() -> None:
    """An hour's step: one note, and no retention for ten minutes (rule E16)."""

    async def story(rig: Rig, _: Housekeeping) -> None:
        await rig.publish(await rig.endpoint())
        await rig.pass_s(61)
        seen = Seen(rig)
        rig.wall_s = lambda: rig.now_ms() // 1000 + 3600  # type: ignore[method-assign] # somebody sets the clock
        await rig.pass_s(CLOCK_STEP_QUIET_MS / 1000 - 60)
        assert [fields for name, fields in rig.told.notes if name == "clock.stepped"] == [{"step_ms": 3_600_000}]
        assert seen.of(ops.Retain) == []
        await rig.pass_s(200)
        assert seen.of(ops.Retain) != []

    _keep_house(story)


def test_rows_that_wait_for_nothing_are_promoted_and_told() -> None:
    """The sweep repairs what must not happen, and says that it did (rule E4)."""

    async def story(rig: Rig, _: Housekeeping) -> None:
        endpoint = await rig.endpoint(ordering="by-key")
        (delivery,) = await rig.publish(endpoint, key="k")
        await rig.state(endpoint, "pause")
        (stuck,) = await rig.publish(endpoint, key="l")
        rig.store.durable.rows[stuck].waiting = True
        await rig.state(endpoint, "resume")
        await rig.pass_s(65)
        assert await rig.status(stuck) == ("delivered", None)
        assert rig.told.noted("order.promoted_by_sweep")
        assert delivery

    _keep_house(story)
