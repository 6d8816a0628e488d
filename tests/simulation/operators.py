"""People of a world who do anything to anything at any time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec

from ackpost.core.model import EndpointSecret, Job, JobKind
from ackpost.core.signing import new_secret, seal
from ackpost.errors import RequestError
from ackpost.ports import operations as ops
from ackpost.ports.operations import Idempotency, JobSelector
from ackpost.service.api_keys import ApiKeyInput
from ackpost.service.auth import Principal
from ackpost.service.tenant_changes import TenantInput, TenantPatch
from tests.simulation.clients import NoAnswer, call
from tests.simulation.history import Violation
from tests.simulation.setup import new_endpoint, path_of

if TYPE_CHECKING:
    from tests.simulation.world import World

ENDPOINTS_MAX = 12
VERBS: tuple[Literal["pause", "resume"], ...] = ("pause", "resume")
OPERATOR = Principal("operator", None, 0)


class Operator:
    """Does something to something every now and then."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._random = rng

    async def run(self, until_s: float, pause_s: float) -> None:
        """Act until the time of troubles is over."""
        world, rng = self._world, self._random
        verbs = [name[4:] for name in dir(self) if name.startswith("_do_")]
        while world.loop.time() < until_s:
            await asyncio.sleep(rng.expovariate(1 / pause_s))
            verb = rng.choice(verbs)
            try:
                await getattr(self, f"_do_{verb}")()
            except NoAnswer:
                continue
            except RequestError as refusal:
                world.history.seen[f"refusal {refusal.code}"] += 1
                continue
            world.history.seen[f"operator {verb}"] += 1

    async def resume_all(self) -> None:
        """After the troubles: everything is enabled and runs."""
        for endpoint in sorted(self._world.state.endpoints):
            if endpoint not in self._world.state.endpoints:
                continue  # a deletion that nobody was told of came late
            for verb in ("enable", "resume"):
                await self._surely(partial(self._state, verb, endpoint))

    async def discard_dead(self) -> None:
        """Let go what waits behind dead letters."""
        for endpoint in sorted({endpoint for endpoint, _ in self._world.state.holds}):
            tenant = self._tenant_of(endpoint)
            await self._surely(partial(self._job, "discard", tenant, JobSelector(endpoint=endpoint)))

    async def _surely(self, act: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await act()
            except (NoAnswer, RequestError):
                await asyncio.sleep(self._random.uniform(0.1, 1))
            else:
                return

    async def _submit(self, operation: ops.Operation) -> ops.Result | ops.Repeated:
        return await call(self._world, lambda node: node.writer.submit(operation))

    def _endpoint(self) -> int:
        endpoints = sorted(self._world.state.endpoints)
        if not endpoints:
            raise NoAnswer
        return self._random.choice(endpoints)

    def _tenant_of(self, endpoint: int) -> int:
        return self._world.state.endpoints[endpoint].tenant

    async def _state(self, verb: str, endpoint: int) -> None:
        found = self._world.state.endpoints[endpoint]
        await call(self._world, lambda node: node.services.states.set_state(found, verb))  # type: ignore[arg-type] # one of the four

    async def _do_pause(self) -> None:
        await self._state("pause", self._endpoint())

    async def _do_resume(self) -> None:
        await self._state("resume", self._endpoint())

    async def _do_disable(self) -> None:
        if self._random.random() < 0.3:
            await self._state("disable", self._endpoint())

    async def _do_enable(self) -> None:
        await self._state("enable", self._endpoint())

    async def _do_rotate(self) -> None:
        endpoint = self._endpoint()
        found = self._world.state.endpoints[endpoint]
        text = new_secret("sha256-hex" if found.signature == "sha256-hex" else "standard", self._random.randbytes(32))
        self._world.paths[path_of(found)].append(text)
        now_ms = self._world.now_ms()
        overlap_ms = self._random.choice([0, 20_000])
        secret = EndpointSecret(seal(text), now_ms)
        await self._submit(ops.RotateSecret(found.tenant, endpoint, secret, overlap_ms, now_ms))

    async def _do_test(self) -> None:
        endpoint = self._world.state.endpoints[self._endpoint()]
        wait_s = self._random.choice([0.0, 2.0])
        await call(self._world, lambda node: node.services.tests.send(endpoint, wait_s=wait_s))

    def _delivery(self) -> tuple[int, int]:
        rows = list(self._world.state.rows)
        if not rows:
            raise NoAnswer
        row = self._world.state.rows[self._random.choice(rows)]
        self._world.history.touched_by_people.add(row.position)
        return row.tenant, row.position

    async def _do_redeliver(self) -> None:
        tenant, delivery = self._delivery()
        await call(self._world, lambda node: node.services.deliveries.redeliver(tenant, delivery))

    async def _do_redeliver_event(self) -> None:
        _, delivery = self._delivery()
        row = self._world.state.rows[delivery]
        endpoint = self._random.choice([None, row.endpoint, self._endpoint()])
        self._world.history.touched_by_people.update(self._world.state.rows_of_event[row.event])
        await self._submit(ops.Redeliver(row.tenant, self._world.now_ms(), event=row.event, endpoint=endpoint))

    async def _do_cancel(self) -> None:
        tenant, delivery = self._delivery()
        await call(self._world, lambda node: node.services.deliveries.cancel(tenant, delivery))

    async def _do_cancel_and_redeliver(self) -> None:
        pending = [row for row in self._world.state.rows.values() if row.status == "pending"]
        if not pending:
            raise NoAnswer
        row = self._random.choice(pending)
        self._world.history.touched_by_people.add(row.position)
        await call(self._world, lambda node: node.services.deliveries.cancel(row.tenant, row.position))
        await call(self._world, lambda node: node.services.deliveries.redeliver(row.tenant, row.position))

    async def _do_expire(self) -> None:
        tenant, delivery = self._delivery()
        event = self._world.state.rows[delivery].event
        self._world.history.touched_by_people.update(self._world.state.rows_of_event[event])
        self._world.history.expired_events.add(event)
        # Its time is that of the process that takes it, however long there was none.
        now_ms = self._world.now_ms
        await call(self._world, lambda node: node.writer.submit(ops.ExpireData(tenant, event, now_ms())))

    async def _job(self, kind: JobKind, tenant: int, selector: JobSelector) -> None:
        params, now_ms = msgspec.to_builtins(selector), self._world.now_ms()
        job = Job(position=0, tenant=tenant, kind=kind, params=params, created_at_ms=now_ms)
        await self._submit(ops.CreateJob(job))

    async def _do_replay(self) -> None:
        endpoint = self._endpoint()
        await self._job("replay", self._tenant_of(endpoint), JobSelector(endpoint=endpoint))

    async def _do_discard(self) -> None:
        endpoint = self._endpoint()
        if self._random.random() < 0.3:
            await self._job("discard", self._tenant_of(endpoint), JobSelector(endpoint=endpoint))

    async def _do_recover(self) -> None:
        endpoint = self._endpoint()
        since_ms = self._world.now_ms() - self._random.randint(1, 60_000)
        await self._job("recover", self._tenant_of(endpoint), JobSelector(endpoint=endpoint, since_ms=since_ms))

    async def _do_cancel_job(self) -> None:
        jobs = list(self._world.state.jobs.values())
        if not jobs:
            raise NoAnswer
        job = self._random.choice(jobs)
        await self._submit(ops.CancelJob(job.tenant, job.position, self._world.now_ms()))

    async def _do_change_policy(self) -> None:
        """Timeouts, limits and ordering change under way."""
        endpoint = self._endpoint()
        found = self._world.state.endpoints[endpoint]
        changed = msgspec.json.decode(msgspec.json.encode(found), type=type(found))
        changed.policy = {**found.policy, "max_in_flight": self._random.randint(1, 10)}
        if self._random.random() < 0.4:
            changed.policy["ordering"] = self._random.choice(["best-effort", "by-key"])
            self._world.history.seen["ordering changed"] += 1
        await self._submit(ops.ReplaceEndpoint(changed, found.rev, self._world.now_ms()))

    # ---- making and removing

    async def _do_create_endpoint(self) -> None:
        if len(self._world.state.endpoints) < ENDPOINTS_MAX:
            endpoint = new_endpoint(self._world, self._random.choice(self._world.tenants))
            await self._submit(ops.CreateEndpoint(endpoint, 1000))

    async def _do_delete_endpoint(self) -> None:
        endpoint = self._endpoint()
        if self._random.random() < 0.3:
            await self._submit(ops.DeleteEndpoint(self._tenant_of(endpoint), endpoint, self._world.now_ms()))

    async def _do_change_endpoint_twice(self) -> None:
        """Two people change the same endpoint: the second is told to look again."""
        endpoint = self._endpoint()
        found = self._world.state.endpoints[endpoint]
        for text in ("one", "other"):
            changed = msgspec.json.decode(msgspec.json.encode(found), type=type(found))
            changed.description = text
            await self._submit(ops.ReplaceEndpoint(changed, found.rev, self._world.now_ms()))

    async def _do_create_tenant(self) -> None:
        uid = f"t{len(self._world.tenants)}"
        made = await call(self._world, lambda node: node.services.tenant_changes.create(TenantInput(uid=uid), None))
        self._world.tenants.append(made.position)

    def _tenant(self) -> str:
        """The uid of one that may be changed or deleted."""
        tenants = [one for one in self._world.state.tenants.values() if one.uid != "default" and not one.deleted]
        if not tenants:
            raise NoAnswer
        return self._random.choice(tenants).uid

    async def _do_change_tenant(self) -> None:
        uid, patch = self._tenant(), TenantPatch(name="changed")
        await call(self._world, lambda node: node.services.tenant_changes.patch(uid, patch))

    async def _do_delete_tenant(self) -> None:
        uid = self._tenant()
        if self._random.random() < 0.3:
            await call(self._world, lambda node: node.services.tenant_changes.delete(uid))

    async def _do_use_api_key(self) -> None:
        """Make one, use it, revoke it: from then on it is refused."""
        tenant, given = self._world.tenants[0], ApiKeyInput("simulated", "publisher")
        made = await call(self._world, lambda node: node.services.api_keys.create(OPERATOR, tenant, given, None))
        header = f"Bearer {made.text}".encode()
        principal = await call(self._world, lambda node: node.services.auth.principal(header))
        if (principal.key, principal.tenant) != (made.key.position, tenant):
            raise Violation(f"a key is taken for another one's: {principal}")
        await asyncio.sleep(self._random.uniform(0, 2))
        await call(self._world, lambda node: node.services.api_keys.delete(None, made.key.position))
        if self._world.revoked_within_s:
            await asyncio.sleep(self._world.revoked_within_s)
        try:
            await call(self._world, lambda node: node.services.auth.principal(header))
        except RequestError as refusal:
            if refusal.code != "unauthenticated":
                raise
        else:
            raise Violation("a key that was revoked still opens")

    async def _do_repeat(self) -> None:
        """The same call twice with one Idempotency-Key: the second is answered as the first, and does nothing."""
        endpoint, now_ms = self._endpoint(), self._world.now_ms()
        key = Idempotency(self._tenant_of(endpoint), f"twice {now_ms}", b"the same", now_ms)
        verb = self._random.choice(VERBS)
        operation = ops.SetEndpointState(key.tenant, endpoint, verb, now_ms, idempotency=key)
        first = await self._submit(operation)
        second = await self._submit(operation)
        leapt = self._world.history.leap_ms + self._world.history.old_leaps_ms > 0
        if not leapt and not (isinstance(second, ops.Repeated) and _version(second.result) == _version(first)):
            raise Violation(f"I1: a repeated call was not answered as the first: {first} {second}")


def _version(result: ops.Result | ops.Repeated) -> tuple[int, int]:
    """What tells one state of an endpoint from another."""
    result = result.result if isinstance(result, ops.Repeated) else result
    assert isinstance(result, ops.EndpointSaved)
    return result.endpoint.position, result.endpoint.rev
