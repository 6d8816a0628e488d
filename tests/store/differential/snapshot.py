"""Everything that can be read of a store, and random questions, in a form that two stores can be compared in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import msgspec

from ackpost.core.model import CLASSES, Job
from ackpost.errors import RequestError
from ackpost.ports.operations import JobSaved, JobSelector, Repeated, Retained
from ackpost.ports.store import DeliveryFilter, EventFilter, Page, Store
from ackpost.testing.reference import State

_ALL = 100_000


def shown(answer: Any) -> Any:
    """An operation's answer without what each store may do its own way."""
    if isinstance(answer, RequestError):
        return (type(answer).__name__, answer.status, answer.code, [error.loc for error in answer.errors])
    if isinstance(answer, Repeated):
        return ("repeated", shown(answer.result))
    if isinstance(answer, JobSaved):
        return msgspec.structs.replace(answer, job=_job(answer.job))
    if isinstance(answer, Retained):
        names = ("idempotency", "keys", "jobs", "events", "deliveries")
        return ({name: answer.removed.get(name, 0) for name in names}, answer.dead_letters, answer.more)
    return answer


def _job(job: Job) -> Job:
    return msgspec.structs.replace(job, cursor=0, params=msgspec.json.decode(msgspec.json.encode(job.params)))


async def snapshot(store: Store, state: State) -> dict[str, Any]:
    """All that is stored, by name of the read; ``state`` says what to ask for."""
    page = Page(limit=_ALL, ascending=True)
    endpoints = {row.endpoint for row in state.rows.values()} | set(state.endpoints)
    seen: dict[str, Any] = {
        "tenants": await store.tenants(page),
        "keys": await store.api_keys(None, page),
        "endpoints": await store.endpoints(None, page),
        "events": await store.events(None, EventFilter(), page),
        "deliveries": await store.deliveries(None, DeliveryFilter(), page),
        "jobs": [_job(job) for job in await store.jobs(None, page)],
        "open jobs": [_job(job) for job in await store.open_jobs(_ALL)],
        "work": await store.scan_work(after_endpoint=0, limit=_ALL),
        "pending": await store.pending_counts(),
        "oldest due": await store.oldest_due_ms(),
        "newest event": await store.newest_event_ms(),
        "payloads": await store.load_payloads(list(state.events)),
        "revs": await store.endpoint_revs(sorted(endpoints)),
    }
    for tenant in state.tenants:
        seen[f"routing {tenant}"] = await store.routing(tenant)
    for endpoint in sorted(endpoints):
        seen[f"attempts {endpoint}"] = await store.attempts(None, delivery=None, endpoint=endpoint, page=page)
        for klass in CLASSES:
            seen[f"window {endpoint} {klass}"] = await store.load_window(endpoint, klass, after=None, limit=_ALL)
    return seen


class Questions:
    """Random reads, the same for every store that is asked with the same seed."""

    def __init__(self, seed: int, state: State, now_ms: int) -> None:
        self.random = Random(seed)
        self.state = state
        self.now_ms = now_ms

    def _of(self, values: Any) -> Any:
        values = list(values)
        return self.random.choice(values) if values else 7

    def _maybe(self, values: Any, ratio: float = 0.2) -> Any:
        return self._of(values) if self.random.random() < ratio else None

    def _page(self) -> Page:
        positions = [*self.state.events, *self.state.rows, *self.state.endpoints, *self.state.jobs]
        times = [self.now_ms - self.random.randrange(60_000) for _ in range(2)]
        return Page(
            self.random.choice((1, 3, 50)), self._maybe(positions, 0.4), self.random.random() < 0.5,
            self._maybe(times[:1]), self._maybe(times[1:]),
        )  # fmt: skip

    async def ask(self, store: Store) -> list[Any]:
        """Ask some questions."""
        asked = self.random.sample(self._kinds(store), 7)
        return [await question() for question in asked]

    def _kinds(self, store: Store) -> list[Callable[[], Awaitable[Any]]]:
        state, maybe, pick = self.state, self._maybe, self._of
        tenant, owner, page, now_ms = maybe(state.tenants, 0.7), pick(state.tenants), self._page(), self.now_ms
        endpoint, event, delivery = pick(state.endpoints), pick(state.events), pick(state.rows)
        attempt = pick(known.position for known in state.attempts.get(delivery, []))
        selector = JobSelector(
            endpoint=maybe([endpoint], 0.5), type=maybe(("order.*", "plain"), 0.3),
            reason=maybe(("gone", "age_exceeded"), 0.3), since_ms=maybe([now_ms - 9000], 0.3),
        )  # fmt: skip
        span = JobSelector(endpoint=endpoint, since_ms=maybe([now_ms - 30_000], 0.5))
        states, url = maybe((("paused", "disabled"), ("enabled",))), maybe(("https://example.com/1",))
        by, since_ms = pick(("endpoint", "type", "reason", "error")), maybe([now_ms - 9000], 0.5)
        after, klass, limit = maybe([(now_ms, delivery)], 0.5), pick((0, 1, 2)), pick((1, 2, 9))
        return [
            lambda: store.events(tenant, self._event_filter(event, endpoint), page),
            lambda: store.events(tenant, self._event_filter(event, endpoint), page),
            lambda: store.deliveries(tenant, self._delivery_filter(event, endpoint), page),
            lambda: store.deliveries(tenant, self._delivery_filter(event, endpoint), page),
            lambda: store.deliveries_of_events([event, *list(state.events)[-3:]], each_max=limit),
            lambda: store.event(tenant, event),
            lambda: store.delivery(tenant, delivery),
            lambda: store.endpoint(tenant, endpoint),
            lambda: store.endpoints(tenant, page, states=states, url=url),
            lambda: store.attempts(tenant, delivery=delivery, endpoint=None, page=page),
            lambda: store.attempts(tenant, delivery=None, endpoint=endpoint, page=page),
            lambda: store.attempt(tenant, delivery, attempt),
            lambda: store.event_by_uid(owner, "u1"),
            lambda: store.endpoint_by_uid(owner, "e1"),
            lambda: store.latest_event(owner, "k", maybe((("order.*",),), 0.5)),
            lambda: store.count_dead(owner, selector, limit * 100),
            lambda: store.count_recoverable(owner, span, now_ms),
            lambda: store.stats(tenant, by, since_ms),
            lambda: store.endpoint_health(endpoint, now_ms),
            lambda: store.endpoint_version(endpoint, limit),
            lambda: store.load_window(endpoint, klass, after=after, limit=limit),
            lambda: store.scan_work(after_endpoint=pick([0, endpoint]), limit=limit),
        ]

    def _event_filter(self, event: int, endpoint: int) -> EventFilter:
        maybe, found = self._maybe, self.state.events.get(event)
        return EventFilter(
            types=maybe((("order.*",), ("plain", "ackpost.*"))), key=maybe(("", "k", "l")),
            uid=maybe([found and found.uid], 0.1), endpoint=maybe([endpoint]), channel=maybe(("c", "d")),
            statuses=maybe((("pending",), ("dead", "delivered"), ("unmatched",))),
        )  # fmt: skip

    def _delivery_filter(self, event: int, endpoint: int) -> DeliveryFilter:
        maybe = self._maybe
        return DeliveryFilter(
            endpoint=maybe([endpoint], 0.3), event=maybe([event], 0.1), key=maybe(("", "k", "l")),
            statuses=maybe((("pending",), ("dead", "cancelled"), ("delivered", "discarded", "pending"))),
            reasons=maybe((("gone",), ("age_exceeded", "endpoint_disabled"))), waiting=maybe((True, False)),
            errors=maybe((("timeout",), ("status", "interrupted"))), status_codes=maybe(((500,), (200, 500))),
            types=maybe((("order.*",), ("plain",))),
        )  # fmt: skip
