"""Jobs: list, read, cancel (contract §3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from litestar import get, post
from litestar.params import FromPath, JSONBody
from litestar.types import ControllerRouterHandler

from ackpost.api.guards import Call
from ackpost.api.inputs import NoFields, path_id
from ackpost.api.params import Listing, PageQuery
from ackpost.api.views import time_text
from ackpost.core import ids
from ackpost.core.model import Job, JobKind, JobState
from ackpost.core.times import rfc3339_ms
from ackpost.service.auth import MANAGERS, READERS

_TAGS: Final = ["Jobs"]


class JobView(msgspec.Struct):
    """A mass change. `total` null: not counted yet; `done` counts deliveries made due, discarded or ended."""

    id: str
    tenant: str
    kind: JobKind
    params: dict[str, Any]
    state: JobState
    total: int | None
    done: int
    skipped: int
    failed: int
    error: str | None
    created_at: str
    finished_at: str | None


class JobStarted(msgspec.Struct):
    """A job that was started."""

    job_id: str


class CountView(msgspec.Struct):
    """What a dry run counted."""

    count: int


def job_view(job: Job, tenant_uid: str, salt: int) -> JobView:
    """Show a job."""
    return JobView(
        id=ids.public_id(ids.JOB, job.position, salt),
        tenant=tenant_uid,
        kind=job.kind,
        params=shown_params(job.params, salt),
        state=job.state,
        total=job.total,
        done=job.done,
        skipped=job.skipped,
        failed=job.failed,
        error=job.error,
        created_at=rfc3339_ms(job.created_at_ms),
        finished_at=time_text(job.finished_at_ms),
    )


def shown_params(params: dict[str, Any], salt: int) -> dict[str, Any]:
    """Show a job's selector as a caller would write it; what only the server uses is left out."""
    shows: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "ids": ("ids", lambda found: [ids.public_id(ids.DELIVERY, one, salt) for one in found]),
        "endpoint": ("endpoint_id", lambda found: ids.public_id(ids.ENDPOINT, found, salt)),
        "type": ("type", str),
        "reason": ("reason", str),
        "since_ms": ("since", rfc3339_ms),
        "until_ms": ("until", rfc3339_ms),
        "event_types": ("event_types", list),
        "all": ("all", bool),
    }
    return {
        shows[name][0]: shows[name][1](value)
        for name, value in params.items()
        if name in shows and value is not None and value is not False
    }


@get("/v1/jobs", roles=READERS, tenants="list", tags=_TAGS, summary="List jobs")
async def list_jobs(call: Call, page: PageQuery) -> Listing[JobView]:
    """List jobs, newest first."""
    rows = await call.services.jobs.page(call.tenant, page.page())
    names = await call.services.tenants.names(row.tenant for row in rows)
    return page.listing(rows, lambda row: row.position, lambda row: job_view(row, names[row.tenant], call.salt))


@get("/v1/jobs/{job:str}", roles=READERS, tenants="any", tags=_TAGS, summary="Read a job")
async def get_job(call: Call, job: FromPath[str]) -> JobView:
    """Read how far a job is."""
    position = path_id(ids.JOB, job, call.salt, "job")
    return await _shown(call, await call.services.jobs.get(call.tenant, position))


@post("/v1/jobs/{job:str}/cancel", roles=MANAGERS, status_code=200, tags=_TAGS, summary="Cancel a job")
async def cancel_job(call: Call, job: FromPath[str], data: JSONBody[NoFields | None] = None) -> JobView:  # noqa: ARG001 - refuses any field
    """Stop a job; what it has done stays done."""
    position = path_id(ids.JOB, job, call.salt, "job")
    return await _shown(call, await call.services.jobs.cancel(call.one_tenant(), position, call.idempotency))


async def _shown(call: Call, job: Job) -> JobView:
    names = await call.services.tenants.names([job.tenant])
    return job_view(job, names[job.tenant], call.salt)


ROUTES: Final[list[ControllerRouterHandler]] = [list_jobs, get_job, cancel_job]
