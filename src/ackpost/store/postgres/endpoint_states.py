"""What a change of an endpoint's state brings with it, whoever makes it."""

from __future__ import annotations

from typing import Final

import msgspec

from ackpost.core.model import Endpoint, Job, JobKind
from ackpost.ports.operations import JobSelector
from ackpost.store.postgres.ledger import Ledger
from ackpost.store.values import document_of, from_document


async def disable(ledger: Ledger, endpoint: Endpoint, state_reason: str | None, reason: str, now_ms: int) -> int:
    """Disable at once; the job that is given ends the deliveries as dead for ``reason``.

    The caller stores the endpoint.
    """
    close_pause(endpoint, now_ms)
    endpoint.state, endpoint.state_reason = "disabled", state_reason
    await note_state(ledger, endpoint, now_ms)
    selector = JobSelector(endpoint=endpoint.position, reason=reason)
    return await start_job(ledger, endpoint.tenant, "end_endpoint", selector, now_ms)


def close_pause(endpoint: Endpoint, now_ms: int) -> None:
    """Let the running clock run again."""
    if endpoint.paused_since_ms is not None:
        endpoint.paused_total_ms += now_ms - endpoint.paused_since_ms
        endpoint.paused_since_ms = None


async def note_state(ledger: Ledger, endpoint: Endpoint, now_ms: int) -> None:
    """Make owner and routers see a changed state."""
    endpoint.rev += 1
    endpoint.updated_at_ms = now_ms
    await ledger.raise_routing_version(endpoint.tenant)


async def start_job(ledger: Ledger, tenant: int, kind: JobKind, selector: JobSelector, now_ms: int) -> int:
    """Make one of the store's own jobs."""
    position = ledger.allocate(1, now_ms)
    params = msgspec.to_builtins(selector)
    await store_job(ledger, Job(position=position, tenant=tenant, kind=kind, params=params, created_at_ms=now_ms))
    return position


UPSERT_JOB: Final = (
    "INSERT INTO job (position, tenant, open, created_ms, finished_ms, document) VALUES ($1, $2, $3, $4, $5, $6)"
    " ON CONFLICT (position, tenant) DO UPDATE SET open = excluded.open, finished_ms = excluded.finished_ms,"
    " document = excluded.document"
)


async def store_job(ledger: Ledger, job: Job) -> None:
    """Write a job, new or changed."""
    await ledger.execute(
        UPSERT_JOB, job.position, job.tenant, is_open(job), job.created_at_ms, job.finished_at_ms, document_of(job)
    )


async def load_job(ledger: Ledger, position: int) -> Job | None:
    """Give a job whatever its tenant, locked until the commit: nobody else steps or cancels it."""
    row = await ledger.one("SELECT document FROM job WHERE position = $1 FOR UPDATE", position)
    return None if row is None else from_document(Job, row[0])


def is_open(job: Job) -> bool:
    """Say whether there is more to do."""
    return job.state in {"queued", "running"}


async def cancel_jobs(ledger: Ledger, endpoint: int, kinds: tuple[JobKind, ...], now_ms: int) -> None:
    """Cancel an endpoint's open jobs of these kinds."""
    for (text,) in await ledger.all("SELECT document FROM job WHERE open ORDER BY position FOR UPDATE"):
        job = from_document(Job, text)
        if job.kind in kinds and job.params.get("endpoint") == endpoint:
            job.state, job.finished_at_ms = "cancelled", now_ms
            await store_job(ledger, job)
