"""Endpoints: making, changing, pausing, disabling, deleting, secrets."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ackpost.core.decision import EndpointChange
from ackpost.core.model import Circuit, Endpoint, EndpointSecret, EndpointVersion
from ackpost.ports.operations import (
    CreateEndpoint,
    DeleteEndpoint,
    Done,
    EndpointSaved,
    Idempotency,
    JobSaved,
    NewEvent,
    Operation,
    Repeated,
    ReplaceEndpoint,
    RotateSecret,
    SetEndpointState,
    Stale,
    StepJob,
)
from ackpost.ports.store import Page
from ackpost.testing.store_contract.world import BY_KEY, HOLD, World, target_of


async def _replace(world: World, endpoint: Endpoint, **fields: Any) -> EndpointSaved:
    present = await world.endpoint_now(endpoint)
    changed = msgspec.structs.replace(present, **fields)
    return await world.do(ReplaceEndpoint(changed, present.rev, world.now_ms), EndpointSaved)


async def check_endpoint_is_stored_whole(world: World) -> None:
    """Everything set is read back, also after a crash; the store gives the position."""
    draft = world.draft(
        uid="e-1", description="d", event_types=("a.*", "b"), channels=("c",), format="flat", key_field="id",
        signature="sha256-hex", signature_header="X-S", headers={"a": "b"}, secret_headers={"k": "v0:s"},
        policy={"retry": {"base_s": 1.5}}, metadata={"m": [1, None]}, paused_total_ms=0,
    )  # fmt: skip
    saved = await world.do(CreateEndpoint(draft, 10), EndpointSaved)
    assert saved.endpoint == msgspec.structs.replace(draft, position=saved.endpoint.position)
    assert (saved.duplicate_url, saved.job) == (False, None)
    await world.restart()
    assert await world.endpoint_now(saved.endpoint) == saved.endpoint
    assert await world.store.endpoint_by_uid(world.tenant, "e-1") == saved.endpoint
    assert await world.store.load_endpoints([saved.endpoint.position, 5]) == {saved.endpoint.position: saved.endpoint}


async def check_same_url_twice_is_told(world: World) -> None:
    """The same URL twice is allowed and told, within a tenant."""
    other = await world.new_tenant("other")
    await world.endpoint(tenant=other.position)
    first = await world.do(CreateEndpoint(world.draft(), 10), EndpointSaved)
    second = await world.do(CreateEndpoint(world.draft(), 10), EndpointSaved)
    assert (first.duplicate_url, second.duplicate_url) == (False, True)
    assert not (await _replace(world, second.endpoint, url="https://example.org/")).duplicate_url
    assert (await _replace(world, second.endpoint, url=first.endpoint.url)).duplicate_url


async def check_uid_of_an_endpoint_is_unique(world: World) -> None:
    """A uid belongs to one live endpoint of a tenant; changing to a taken one is refused too."""
    other = await world.new_tenant("other")
    first = await world.endpoint(uid="e")
    await world.endpoint(tenant=other.position, uid="e")
    await world.refused(CreateEndpoint(world.draft(uid="e"), 10), 409, "already_exists")
    second = await world.endpoint(uid="f")
    changed = msgspec.structs.replace(second, uid="e")
    await world.refused(ReplaceEndpoint(changed, second.rev, world.now_ms), 409, "already_exists")
    await world.do(DeleteEndpoint(world.tenant, first.position, world.now_ms), Done)
    assert await world.store.endpoint_by_uid(world.tenant, "e") is None
    await world.endpoint(uid="e")


async def check_endpoints_are_limited(world: World) -> None:
    """A tenant has at most so many endpoints; deleting makes room."""
    first = await world.endpoint()
    await world.do(CreateEndpoint(world.draft(), 2), EndpointSaved)
    await world.refused(CreateEndpoint(world.draft(), 2), 422, "invalid")
    await world.do(DeleteEndpoint(world.tenant, first.position, world.now_ms), Done)
    await world.do(CreateEndpoint(world.draft(), 2), EndpointSaved)
    await world.refused(CreateEndpoint(world.draft(tenant=99), 2), 404, "unknown_tenant")


async def check_creation_is_idempotent_by_key(world: World) -> None:
    """A repeated Idempotency-Key gives the same endpoint with its secret."""
    key = Idempotency(world.tenant, "x", b"d", world.now_ms)
    first = await world.do(CreateEndpoint(world.draft(), 10, key), EndpointSaved)
    assert await world.answer(CreateEndpoint(world.draft(), 10, key)) == Repeated(first)
    assert len(await world.store.endpoints(world.tenant, Page())) == 1


async def check_replacing_needs_the_rev_that_was_read(world: World) -> None:
    """A change made from an older reading is Stale and changes nothing."""
    endpoint = await world.endpoint()
    await _replace(world, endpoint, description="first")
    stale = msgspec.structs.replace(endpoint, description="second")
    assert await world.do(ReplaceEndpoint(stale, endpoint.rev, world.now_ms), Stale) == Stale()
    assert (await world.endpoint_now(endpoint)).description == "first"


async def check_replacing_keeps_runtime_fields(world: World) -> None:
    """State, circuit, secrets, failing marks and the clock are not the caller's to set."""
    endpoint = await world.endpoint()
    await world.set_state(endpoint, "pause")
    before = await world.endpoint_now(endpoint)
    world.later(10)
    saved = await _replace(
        world, endpoint, description="new", state="enabled", state_reason="x", circuit=Circuit("open"), secrets=(),
        first_failure_ms=1, last_failure_ms=1, failing_announced=True, retry_after_until_ms=9, paused_since_ms=None,
        paused_total_ms=5, created_at_ms=1, rev=77, version=77,
    )  # fmt: skip
    expected = msgspec.structs.replace(before, description="new", rev=before.rev + 1, updated_at_ms=world.now_ms)
    assert saved.endpoint == expected
    assert await world.endpoint_now(endpoint) == expected


async def check_version_names_how_requests_looked(world: World) -> None:
    """url, headers and signature make a new version; old ones stay readable, also after deletion."""
    endpoint = await world.endpoint(headers={"a": "1"}, secret_headers={"z": "v0:1", "y": "v0:2"})
    first = EndpointVersion(endpoint.position, 1, endpoint.url, "standard", None, {"a": "1"}, ("y", "z"))
    assert await world.store.endpoint_version(endpoint.position, 1) == first
    changes: tuple[dict[str, Any], ...] = (
        {"url": "https://example.org/"}, {"headers": {}}, {"secret_headers": {}}, {"signature": "sha256-hex"},
        {"signature_header": "X-S"},
    )  # fmt: skip
    for number, change in enumerate(changes, 2):
        assert (await _replace(world, endpoint, **change)).endpoint.version == number
    assert (await _replace(world, endpoint, description="d", event_types=("a",))).endpoint.version == 6
    last = EndpointVersion(endpoint.position, 6, "https://example.org/", "sha256-hex", "X-S", {}, ())
    assert await world.store.endpoint_version(endpoint.position, 6) == last
    await world.do(DeleteEndpoint(world.tenant, endpoint.position, world.now_ms), Done)
    assert await world.store.endpoint_version(endpoint.position, 1) == first
    assert await world.store.endpoint_version(endpoint.position, 7) is None


async def check_routing_version_rises_with_what_routing_needs(world: World) -> None:
    """Only changes of who gets what in which way make publishers route again (rule E10)."""
    endpoint = await world.endpoint()
    version = await world.routing_version()
    for change, raises in (
        ({"description": "d"}, False), ({"url": "https://example.org/"}, False), ({"event_types": ("a",)}, True),
        ({"channels": ("c",)}, True), ({"format": "flat"}, True), ({"key_field": "k"}, True),
        ({"policy": {"timeout_s": 3}}, False), ({"policy": {"ordering": "by-key"}}, True),
        ({"policy": {"ordering": "by-key", "on_dead": "hold"}}, False), ({"policy": {}}, True),
    ):  # fmt: skip
        await _replace(world, endpoint, **change)
        assert await world.routing_version() == version + raises, change
        version += raises
    for verb in ("pause", "resume", "disable", "enable"):
        await world.set_state(endpoint, verb)
        version += 1
        assert await world.routing_version() == version
    secret = EndpointSecret("v0:new", world.now_ms)
    await world.do(RotateSecret(world.tenant, endpoint.position, secret, 0, world.now_ms), EndpointSaved)
    assert await world.routing_version() == version
    await world.endpoint()
    await world.do(DeleteEndpoint(world.tenant, endpoint.position, world.now_ms), Done)
    assert await world.routing_version() == version + 2


async def check_rev_rises_with_every_change(world: World) -> None:
    """The owner finds out by rev: it rises with each change, not with accepts, results or changes of nothing."""
    endpoint, other = await world.endpoint(), await world.endpoint()
    rev = endpoint.rev
    await world.one()
    await world.deliver(await world.first_due(endpoint))
    assert await world.store.endpoint_revs([endpoint.position, 1]) == {endpoint.position: rev}
    for verb in ("pause", "resume", "disable", "enable"):
        await world.set_state(endpoint, verb)
        rev += 1
        await world.set_state(endpoint, verb)
        assert await world.store.endpoint_revs([endpoint.position]) == {endpoint.position: rev}
    secret = EndpointSecret("v0:new", world.now_ms)
    await world.do(RotateSecret(world.tenant, endpoint.position, secret, 0, world.now_ms), EndpointSaved)
    await _replace(world, endpoint, description="d")
    revs = await world.store.endpoint_revs([endpoint.position, other.position])
    assert revs == {endpoint.position: rev + 2, other.position: other.rev}


# ---------------------------------------------------------------- states


async def check_pausing_stops_the_clock(world: World) -> None:
    """The running clock stands still in a pause and goes on afterwards; deliveries are kept."""
    endpoint = await world.endpoint()
    await world.one()
    paused = (await world.do(
        SetEndpointState(world.tenant, endpoint.position, "pause", world.now_ms, "by hand"), EndpointSaved
    )).endpoint  # fmt: skip
    assert (paused.state, paused.state_reason, paused.paused_since_ms) == ("paused", "by hand", world.now_ms)
    since_ms = world.now_ms
    world.later(5000)
    assert paused.clock_ms(world.now_ms) == since_ms
    resumed = (await world.set_state(endpoint, "resume")).endpoint
    assert (resumed.state, resumed.state_reason, resumed.paused_since_ms) == ("enabled", None, None)
    assert (resumed.paused_total_ms, resumed.updated_at_ms) == (5000, world.now_ms)
    assert len(await world.due(endpoint)) == 1


async def check_resume_and_enable_probe_at_once(world: World) -> None:
    """Both clear Retry-After and put an open circuit to half-open; enable also clears failing marks."""
    endpoint = await world.endpoint()
    await world.publish(NewEvent("a", b"1"), NewEvent("a", b"2"))
    bad = EndpointChange(
        circuit=Circuit("open", failures=10, openings=2, successes=1, retry_at_ms=5), retry_after_until_ms=99,
        first_failure_ms=1, last_failure_ms=2, failing_announced=True,
    )  # fmt: skip
    for verb, failing in (("resume", 1), ("enable", None)):
        ref = await world.first_due(endpoint)
        await world.record(world.result(ref, "retry", due_ms=world.now_ms + 1, endpoint_change=bad))
        before = await world.endpoint_now(endpoint)
        after = (await world.set_state(endpoint, verb)).endpoint
        assert after.circuit == Circuit("half-open", failures=10, openings=2, retry_at_ms=5)
        assert (after.retry_after_until_ms, after.first_failure_ms, after.state) == (0, failing, "enabled")
        assert after.failing_announced == (failing is not None)
        assert after.rev == before.rev + 1
        assert after == await world.endpoint_now(endpoint)


async def check_verbs_that_do_not_fit_are_refused(world: World) -> None:
    """A disabled endpoint is neither paused nor resumed; an unknown one is 404 for every verb."""
    endpoint = await world.endpoint()
    await world.set_state(endpoint, "disable")
    verbs: tuple[Literal["pause", "resume"], ...] = ("pause", "resume")
    for verb in verbs:
        refused = SetEndpointState(world.tenant, endpoint.position, verb, world.now_ms)
        await world.refused(refused, 409, "invalid_state")
    other = await world.new_tenant("other")
    secret = EndpointSecret("v0:new", world.now_ms)
    for tenant, position in ((other.position, endpoint.position), (world.tenant, 7)):
        unknown = msgspec.structs.replace(endpoint, tenant=tenant, position=position)
        operations: tuple[Operation, ...] = (
            SetEndpointState(tenant, position, "enable", world.now_ms),
            RotateSecret(tenant, position, secret, 0, world.now_ms),
            DeleteEndpoint(tenant, position, world.now_ms),
            ReplaceEndpoint(unknown, endpoint.rev, world.now_ms),
        )
        for operation in operations:
            await world.refused(operation, 404, "not_found")
    assert (await world.endpoint_now(endpoint)).state == "disabled"


async def check_disabling_ends_what_was_pending(world: World) -> None:
    """The state flips at once; a job ends what was pending then, waiting ones too; later events make no delivery."""
    endpoint, other = await world.endpoint(policy=BY_KEY), await world.endpoint(url="https://example.org/")
    await world.publish(*(NewEvent("a", b"1", key="k") for _ in range(5)))
    await world.set_state(endpoint, "pause")
    world.later(100)
    saved = await world.do(
        SetEndpointState(world.tenant, endpoint.position, "disable", world.now_ms, "by hand"), EndpointSaved
    )
    assert (saved.endpoint.state, saved.endpoint.state_reason) == ("disabled", "by hand")
    assert (saved.endpoint.paused_since_ms, saved.endpoint.paused_total_ms) == (None, 100)
    late = await world.one()
    assert late.deliveries == 1
    rev = (await world.endpoint_now(endpoint)).rev
    job = await world.run_job(saved.job)
    assert (job.kind, job.state, job.total, job.done, job.finished_at_ms) == (
        "end_endpoint",
        "done",
        5,
        5,
        world.now_ms,
    )
    rows = await world.all_deliveries(endpoint=endpoint.position)
    assert {(row.status, row.reason) for row in rows} == {("dead", "endpoint_disabled")}
    assert await world.due(endpoint) == []
    assert len(await world.due(other)) == 6
    assert (await world.endpoint_now(endpoint)).rev == rev + 3


async def check_disabling_spares_what_comes_later(world: World) -> None:
    """A test sent to a disabled endpoint is not ended by the job that was made before it."""
    endpoint = await world.endpoint()
    job = (await world.set_state(endpoint, "disable")).job
    test = await world.one("ackpost.test", targets=(target_of(endpoint),), trigger="test")
    assert (await world.run_job(job)).done == 0
    assert [ref.event for ref in await world.due(endpoint)] == [test.position]


async def check_enabling_cancels_the_rest(world: World) -> None:
    """Enabling stops the ending job; what it had not reached is sent."""
    endpoint = await world.endpoint()
    await world.publish(*(NewEvent("a", b"1") for _ in range(5)))
    job = (await world.set_state(endpoint, "disable")).job
    assert job is not None
    await world.do(StepJob(job, 2, world.now_ms), JobSaved)
    await world.set_state(endpoint, "enable")
    ended = (await world.do(StepJob(job, 2, world.now_ms), JobSaved)).job
    assert (ended.state, ended.done) == ("cancelled", 2)
    assert len(await world.due(endpoint)) == 3
    assert await world.store.open_jobs(10) == []


async def check_disabling_by_a_result(world: World) -> None:
    """A 410 or a long failure disables in the result's commit, with a job for the rest."""
    for disabling, reason in (("gone", "gone"), ("failing", "endpoint_disabled")):
        endpoint = await world.endpoint(event_types=(disabling,))
        await world.publish(*(NewEvent(disabling, b"1") for _ in range(3)))
        version = await world.routing_version()
        ref = await world.first_due(endpoint)
        await world.record(
            world.result(ref, "dead", reason="gone", endpoint_change=world.disabling(disabling)),
            world.result(
                (await world.due(endpoint))[1], "dead", reason="gone", endpoint_change=world.disabling(disabling)
            ),
        )
        after = await world.endpoint_now(endpoint)
        assert (after.state, after.state_reason, after.rev) == ("disabled", disabling, endpoint.rev + 1)
        assert await world.routing_version() == version + 1
        (job,) = await world.store.open_jobs(10)
        assert (job.kind, job.state) == ("end_endpoint", "queued")
        assert (await world.run_job(job.position)).done == 1
        rows = await world.all_deliveries(endpoint=endpoint.position)
        assert [row.reason for row in rows] == ["gone", "gone", reason]


async def check_deleting_cancels_what_was_pending(world: World) -> None:
    """A deleted endpoint is gone at once; a job cancels its deliveries; history stays readable."""
    endpoint = await world.endpoint(policy=HOLD)
    first, *_ = (await world.publish(*(NewEvent("a", b"1", key="k") for _ in range(4)))).events
    await world.die(await world.first_due(endpoint), hold=True)
    disabling = (await world.set_state(endpoint, "disable")).job
    deleted = await world.do(DeleteEndpoint(world.tenant, endpoint.position, world.now_ms), Done)
    assert deleted.touched == [endpoint.position]
    assert await world.store.endpoint(None, endpoint.position) is None
    assert await world.store.load_endpoints([endpoint.position]) == {}
    assert await world.store.endpoint_revs([endpoint.position]) == {}
    assert (await world.one()).deliveries == 0
    job = await world.run_job(deleted.position)
    assert (job.kind, job.done) == ("delete_endpoint", 3)
    assert disabling is not None
    cancelled = await world.store.job(None, disabling)
    assert cancelled is not None
    assert cancelled.state == "cancelled"
    rows = await world.all_deliveries()
    assert [(row.status, row.reason) for row in rows[1:]] == [("cancelled", "endpoint_deleted")] * 3
    assert (await world.delivery(first.position + 1)).status == "dead"
    assert len(await world.attempts(first.position + 1)) == 1


async def check_result_for_a_deleted_endpoint_counts(world: World) -> None:
    """What was in flight when its endpoint was deleted is still recorded."""
    endpoint = await world.endpoint()
    await world.one()
    ref = await world.first_due(endpoint)
    deleted = await world.do(DeleteEndpoint(world.tenant, endpoint.position, world.now_ms), Done)
    answer = await world.record(world.result(ref, "delivered", endpoint_change=world.disabling("gone")))
    assert answer.applied == [True]
    assert (await world.run_job(deleted.position)).done == 0
    assert (await world.delivery(ref.position)).status == "delivered"


# ---------------------------------------------------------------- secrets


async def check_rotated_secrets_overlap(world: World) -> None:
    """The new secret comes first, the old one expires after the overlap; never later than it already would."""
    endpoint = await world.endpoint()
    for number in range(2):
        secret = EndpointSecret(f"v0:{number}", world.now_ms)
        operation = RotateSecret(world.tenant, endpoint.position, secret, 1000, world.now_ms)
        saved = await world.do(operation, EndpointSaved)
        world.later(600)
    start_ms = endpoint.created_at_ms
    assert [secret.sealed for secret in saved.endpoint.secrets] == ["v0:1", "v0:0", "v0:first"]
    assert [secret.expires_at_ms for secret in saved.endpoint.secrets] == [None, start_ms + 1600, start_ms + 1000]
    assert saved.endpoint.updated_at_ms == start_ms + 600
    await world.restart()
    assert await world.endpoint_now(endpoint) == saved.endpoint
    operation = RotateSecret(world.tenant, endpoint.position, EndpointSecret("v0:2", world.now_ms), 1000, world.now_ms)
    saved = await world.do(operation, EndpointSaved)
    assert [secret.sealed for secret in saved.endpoint.secrets] == ["v0:2", "v0:1", "v0:0"], "expired ones leave"


async def check_no_overlap_revokes_at_once(world: World) -> None:
    """With an overlap of 0 only the new secret is left."""
    endpoint = await world.endpoint()
    operation = RotateSecret(world.tenant, endpoint.position, EndpointSecret("v0:n", world.now_ms), 0, world.now_ms)
    saved = await world.do(operation, EndpointSaved)
    assert saved.endpoint.secrets == (EndpointSecret("v0:n", world.now_ms),)


async def check_at_most_five_secrets_live(world: World) -> None:
    """The oldest leave when there are more than five."""
    endpoint = await world.endpoint()
    for number in range(7):
        secret = EndpointSecret(f"v0:{number}", world.now_ms)
        await world.do(RotateSecret(world.tenant, endpoint.position, secret, 99_999, world.now_ms), EndpointSaved)
    secrets = (await world.endpoint_now(endpoint)).secrets
    assert [secret.sealed for secret in secrets] == ["v0:6", "v0:5", "v0:4", "v0:3", "v0:2"]
