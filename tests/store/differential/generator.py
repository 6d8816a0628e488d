"""Random operations, drawn from what the oracle holds at that moment."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

import msgspec

from ackpost.core.decision import Announcement, Decision, EndpointChange
from ackpost.core.matching import matches
from ackpost.core.model import CLOSED, ApiKey, Circuit, DeliveryRef, Endpoint, EndpointSecret, Job, Role, Tenant
from ackpost.core.outcome import Outcome
from ackpost.ports import operations as ops
from ackpost.testing.reference import State
from ackpost.testing.store_contract.world import target_of

T = TypeVar("T")

TYPES = ("order.made", "order.paid", "user.made", "plain")
FILTERS = (("*",), ("order.*",), ("user.made", "plain"), ("ackpost.*",), ("*", "ackpost.delivery.dead"))
CHANNELS: tuple[tuple[str, ...], ...] = ((), (), (), ("c",), ("c", "d"))
POLICIES: tuple[dict[str, Any], ...] = (
    {}, {"timeout_s": 3}, {"ordering": "by-key"}, {"ordering": "by-key", "on_dead": "hold"},
    {"ordering": "by-key", "on_dead": "hold", "timeout_s": 2},
)  # fmt: skip
PHASES_MS = (1.0, 2.0, 3.0, 4.0, 5.5)
REASONS = ("attempts_exhausted", "age_exceeded", "permanent_failure", "gone")
FORMATS = (("standard", None), ("bare", None), ("flat", None), ("flat", "id"))
CIRCUITS = (
    CLOSED,
    Circuit("open", failures=10, retry_at_ms=5, openings=1, successes=2),
    Circuit("ramping", ramp_limit=2),
)
DAY_MS = 24 * 3600 * 1000


class Generator:
    """Draws operations. ``flying`` are rows as they were sent: their results may come late."""

    def __init__(self, seed: int, state: State, now_ms: int) -> None:
        self.random = Random(seed)
        self.state = state
        self.now_ms = now_ms
        self.flying: list[DeliveryRef] = []
        self.sent: list[Decision] = []

    # ---- drawing

    def chance(self, ratio: float) -> bool:
        """True so often."""
        return self.random.random() < ratio

    def pick(self, values: Any) -> Any:
        """One of them, or 7 when there is none."""
        values = list(values)
        return self.random.choice(values) if values else 7

    def position(self, values: Any) -> int:
        """A position that mostly exists."""
        return self.random.randrange(1, 9) if self.chance(0.03) else self.pick(values)

    def tenant(self) -> int:
        """A live tenant, seldom another one."""
        if self.chance(0.02):
            return int(self.pick([*self.state.tenants, 7]))
        return int(self.pick(t.position for t in self.state.tenants.values() if not t.deleted))

    def owner(self, table: dict[int, Any], position: int) -> int:
        """The tenant of an object; seldom a wrong one."""
        found = table.get(position)
        return self.tenant() if found is None or self.chance(0.03) else int(found.tenant)

    def endpoint(self) -> Endpoint | None:
        """A live endpoint."""
        return self.random.choice(list(self.state.endpoints.values())) if self.state.endpoints else None

    def idempotency(self, tenant: int) -> ops.Idempotency | None:
        """Seldom one of few keys."""
        if not self.chance(0.1):
            return None
        digest = b"%d" % self.random.randrange(2)
        return ops.Idempotency(tenant, f"i{self.random.randrange(8)}", digest, self.now_ms)

    def draw(self) -> ops.Operation:
        """One operation."""
        if not self.state.endpoints or self.chance(0.03):
            return self.create_endpoint()
        kinds: list[tuple[int, Callable[[], ops.Operation]]] = [
            (20, self.accept), (26, self.record), (6, self.replace_endpoint), (7, self.set_state), (9, self.redeliver),
            (6, self.cancel), (3, self.expire), (6, self.create_job), (16, self.step_job), (1, self.cancel_job),
            (3, self.interrupt), (1, self.promote), (2, self.retain), (1, self.renew), (2, self.rotate),
            (1, self.delete_endpoint), (3, self.of_tenants), (3, self.of_keys),
        ]  # fmt: skip
        (kind,) = self.random.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])
        return kind()

    # ---- events and results

    def accept(self) -> ops.Operation:
        """Publish one to four events."""
        tenant = self.tenant()
        version = self.state.routing_versions.get(tenant, 1) - self.chance(0.03)
        events = [self.event(tenant) for _ in range(self.random.choice((1, 1, 2, 4)))]
        return ops.Accept(tenant, version, events, self.now_ms, self.chance(0.5), self.idempotency(tenant))

    def event(self, tenant: int) -> ops.NewEvent:
        """A routed event; seldom a test."""
        owned = sorted((e for e in self.state.endpoints.values() if e.tenant == tenant), key=lambda e: e.position)
        key = self.pick((None, "", "k", "k", "l"))
        if owned and self.chance(0.04):
            target = target_of(self.random.choice(owned))
            return ops.NewEvent("ackpost.test", b"{}", key=key, targets=(target,), trigger="test")
        type, channels = self.pick(TYPES), self.pick(CHANNELS)
        targets = tuple(
            target_of(endpoint)
            for endpoint in owned
            if endpoint.state != "disabled" and matches(endpoint.event_types, endpoint.channels, type, channels)
        )
        has_uid = self.chance(0.2)
        return ops.NewEvent(
            type, b"%d" % self.random.randrange(100), uid=f"u{self.random.randrange(12)}" if has_uid else None,
            digest=b"%d" % self.random.randrange(2) if has_uid else None, key=key,
            sequence=self.random.randrange(1, 40) if key is not None and self.chance(0.1) else None,
            occurred_at_ms=self.pick((None, 5)), channels=channels, metadata=self.pick((None, b"{}")), targets=targets,
        )  # fmt: skip

    def record(self) -> ops.Operation:
        """Results of what is due, late results, and repeated ones."""
        due = [row for rows in self.state.pending.values() for row in rows.values() if not row.waiting]
        chosen = [row.ref() for row in self.random.sample(due, min(len(due), self.random.choice((1, 2, 5))))]
        self.flying += [ref for ref in chosen if self.chance(0.3)]
        if self.flying and self.chance(0.3):
            chosen.append(self.flying.pop(self.random.randrange(len(self.flying))))
        decisions = [self.decision(ref) for ref in chosen]
        if self.sent and self.chance(0.1):
            decisions.append(self.random.choice(self.sent))
        self.sent = [*self.sent, *decisions][-20:]
        return ops.Record(decisions, self.state.incarnation - self.chance(0.02), self.now_ms, "a")

    def decision(self, ref: DeliveryRef) -> Decision:
        """What an attempt came to."""
        verdict = self.pick(("delivered", "delivered", "retry", "retry", "dead", "dead", "again"))
        ends_itself = verdict == "dead" and self.chance(0.3)
        if verdict == "dead" and ref.trigger == "test":
            verdict = "discarded"
        used = verdict != "again" and not ends_itself
        good = Outcome("delivered", 200, response_body=b"x" * self.random.choice((0, 1500)), duration_ms=1.5)
        headers = (("a", "b"),)
        slow = Outcome("timeout", phase="wait", remote_ip="::1", response_headers=headers, phases_ms=PHASES_MS)
        bad = self.pick((Outcome("status", 500, response_body=b"yy"), slow))
        policy = self.state.policy(ref.endpoint)
        return Decision(
            delivery=ref.position, event=ref.event, tenant=ref.tenant, endpoint=ref.endpoint, round=ref.round,
            number=ref.number + used, verdict=verdict,
            reason=self.pick(REASONS) if verdict in {"dead", "discarded"} else None,
            due_ms=self.now_ms + self.random.randrange(9000) if verdict in {"retry", "again"} else None,
            trigger=ref.trigger, crashes=ref.crashes if verdict == "again" else 0,
            outcome=None if ends_itself else good if verdict == "delivered" else bad,
            started_at_ms=self.now_ms - 5, ended_at_ms=self.pick((self.now_ms, self.now_ms - 3, 0)),
            version=self.pick((1, 2)),
            ordered=ref.ordered,
            hold=verdict == "dead" and ref.ordered and policy is not None and policy.on_dead == "hold",
            endpoint_change=self.change() if self.chance(0.2) else None,
            announcements=self.announcements(ref.endpoint) if self.chance(0.2) else (),
        )  # fmt: skip

    def change(self) -> EndpointChange:
        """What an attempt changes of its endpoint."""
        disabling = self.pick(("gone", "failing")) if self.chance(0.15) else None
        changes = (
            EndpointChange(circuit=self.pick(CIRCUITS), disable_reason=disabling),
            EndpointChange(retry_after_until_ms=self.now_ms + 5, last_failure_ms=self.now_ms),
            EndpointChange(first_failure_ms=self.now_ms, failing_announced=True, disable_reason=disabling),
            EndpointChange(clear_failing=True, circuit=CLOSED),
        )
        return self.random.choice(changes)

    def announcements(self, about: int) -> tuple[Announcement, ...]:
        """One or two operational events."""
        kinds = self.pick((("ackpost.delivery.dead",), ("ackpost.endpoint.failing", "ackpost.delivery.dead")))
        return tuple(Announcement(kind, about, {"n": self.random.randrange(9)}) for kind in kinds)

    def interrupt(self) -> ops.Operation:
        """A crash while sending."""
        rows = self.random.sample(list(self.state.rows.values()), min(len(self.state.rows), 3))
        marks = [ops.Mark(row.position, row.round, row.number - self.chance(0.1)) for row in rows]
        return ops.Interrupt(marks, 3, self.now_ms, "a")

    # ---- people's changes

    def redeliver(self) -> ops.Operation:
        """By delivery, by event, or to one endpoint."""
        if self.chance(0.5):
            delivery = self.position(self.state.rows)
            tenant = self.owner(self.state.rows, delivery)
            return ops.Redeliver(tenant, self.now_ms, delivery=delivery, idempotency=self.idempotency(tenant))
        event = self.position(self.state.events)
        endpoint = self.position(self.state.endpoints) if self.chance(0.5) else None
        return ops.Redeliver(self.owner(self.state.events, event), self.now_ms, event=event, endpoint=endpoint)

    def cancel(self) -> ops.Operation:
        """By delivery or by event."""
        if self.chance(0.6):
            delivery = self.position(self.state.rows)
            return ops.Cancel(self.owner(self.state.rows, delivery), self.now_ms, delivery=delivery)
        event = self.position(self.state.events)
        return ops.Cancel(self.owner(self.state.events, event), self.now_ms, event=event)

    def expire(self) -> ops.Operation:
        """Remove an event's data."""
        event = self.position(self.state.events)
        return ops.ExpireData(self.owner(self.state.events, event), event, self.now_ms)

    def create_job(self) -> ops.Operation:
        """Replay, discard, recover by some selector."""
        kind = self.pick(("replay", "replay", "discard", "recover", "recover"))
        endpoint = self.position(self.state.endpoints)
        tenant = self.owner(self.state.endpoints, endpoint)
        since_ms = self.pick((None, self.now_ms - 20_000))
        until_ms = self.pick((None, None, self.now_ms - 2000))
        if kind == "recover":
            types = self.pick((None, ("order.*",), ("plain", "user.*")))
            selector = ops.JobSelector(endpoint=endpoint, since_ms=since_ms, until_ms=until_ms, event_types=types)
        else:
            dead = [row.position for row in self.state.rows.values() if row.status == "dead"]
            selector = self.pick((
                ops.JobSelector(all=True), ops.JobSelector(endpoint=endpoint, since_ms=since_ms),
                ops.JobSelector(ids=tuple(self.random.sample(dead, min(3, len(dead)))) or (7,)),
                ops.JobSelector(type="order.*", until_ms=until_ms), ops.JobSelector(reason=self.pick(REASONS)),
            ))  # fmt: skip
        params = msgspec.to_builtins(selector)
        job = Job(position=0, tenant=tenant, kind=kind, params=params, created_at_ms=self.now_ms)
        return ops.CreateJob(job, self.idempotency(tenant))

    def step_job(self) -> ops.Operation:
        """Mostly an open job."""
        opened = [job.position for job in self.state.jobs.values() if job.state in {"queued", "running"}]
        return ops.StepJob(self.position(opened or self.state.jobs), self.random.choice((1, 2, 50)), self.now_ms)

    def cancel_job(self) -> ops.Operation:
        """Any job."""
        job = self.position(self.state.jobs)
        return ops.CancelJob(self.owner(self.state.jobs, job), job, self.now_ms)

    # ---- endpoints, tenants, keys

    def draft(self, **fields: Any) -> dict[str, Any]:
        """Configuration of an endpoint."""
        format, key_field = self.pick(FORMATS)
        return {
            "url": f"https://example.com/{self.random.randrange(5)}", "event_types": self.pick(FILTERS),
            "channels": self.pick(CHANNELS), "policy": self.pick(POLICIES), "format": format, "key_field": key_field,
            "headers": self.pick(({}, {"a": "b"})), "secret_headers": self.pick(({}, {"s": "v0:x"})),
            "uid": self.pick((None, None, "e1", "e2")), **fields,
        }  # fmt: skip

    def create_endpoint(self) -> ops.Operation:
        """A new endpoint."""
        tenant = self.tenant()
        secrets = (EndpointSecret("v0:1", self.now_ms),)
        endpoint = Endpoint(position=0, tenant=tenant, secrets=secrets, created_at_ms=self.now_ms, **self.draft())
        return ops.CreateEndpoint(endpoint, 6, self.idempotency(tenant))

    def replace_endpoint(self) -> ops.Operation:
        """A changed endpoint, seldom from an old reading."""
        old = self.endpoint()
        if old is None:
            return self.create_endpoint()
        fields = self.draft()
        kept = {name: getattr(old, name) for name in fields if self.chance(0.6)}
        new = msgspec.structs.replace(old, **{**fields, **kept})
        return ops.ReplaceEndpoint(new, old.rev - self.chance(0.05), self.now_ms)

    def set_state(self) -> ops.Operation:
        """Pause, resume, enable, disable."""
        endpoint = self.position(self.state.endpoints)
        tenant = self.owner(self.state.endpoints, endpoint)
        verb = self.pick(("pause", "resume", "enable", "enable", "disable"))
        return ops.SetEndpointState(tenant, endpoint, verb, self.now_ms, "by hand", self.idempotency(tenant))

    def rotate(self) -> ops.Operation:
        """A new secret."""
        endpoint = self.position(self.state.endpoints)
        tenant = self.owner(self.state.endpoints, endpoint)
        secret = EndpointSecret(f"v0:{self.random.randrange(9)}", self.now_ms)
        return ops.RotateSecret(tenant, endpoint, secret, self.pick((0, 5000, DAY_MS)), self.now_ms)

    def delete_endpoint(self) -> ops.Operation:
        """An endpoint goes."""
        endpoint = self.position(self.state.endpoints)
        return ops.DeleteEndpoint(self.owner(self.state.endpoints, endpoint), endpoint, self.now_ms)

    def of_tenants(self) -> ops.Operation:
        """Make, change, seldom delete a tenant."""
        uid = f"t{self.random.randrange(3)}"
        live = [tenant for tenant in self.state.tenants.values() if not tenant.deleted]
        if len(live) < 3 and self.chance(0.5):
            return ops.CreateTenant(Tenant(position=0, uid=uid, created_at_ms=self.now_ms), self.idempotency(0))
        if len(live) > 1 and self.chance(0.3):
            return ops.DeleteTenant(live[-1].position, self.now_ms)
        return ops.ReplaceTenant(msgspec.structs.replace(self.random.choice(live), name=uid))

    def of_keys(self) -> ops.Operation:
        """Make, use, revoke keys."""
        key = self.position(self.state.api_keys)
        if self.chance(0.4):
            tenant = self.pick((None, self.tenant()))
            role: Role = "operator" if tenant is None else "admin"
            digest = b"%d" % self.random.randrange(10**6)
            made = ApiKey(
                position=0, name="n", prefix="p", digest=digest, role=role, tenant=tenant, created_at_ms=self.now_ms
            )
            return ops.CreateApiKey(made)
        if self.chance(0.5):
            return ops.TouchApiKeys({key: self.now_ms - self.random.randrange(9)})
        return ops.DeleteApiKey(key, self.pick((None, self.tenant())))

    # ---- housekeeping

    def promote(self) -> ops.Operation:
        """The sweep."""
        return ops.Promote(self.random.choice((1, 100)), self.now_ms)

    def retain(self) -> ops.Operation:
        """A step of retention."""
        cuts = [self.now_ms - self.random.randrange(100_000) for _ in range(4)]
        return ops.Retain(cuts[0], cuts[1], cuts[2], cuts[3], self.random.choice((1, 3, 100)), self.now_ms)

    def renew(self) -> ops.Operation:
        """The lease goes on."""
        return ops.RenewLease("a", self.state.incarnation, self.now_ms, 20_000)
