"""Jobs: mass changes under way, and stopping them (contract §3, rule E13)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackpost.core.model import Job
from ackpost.errors import NotFound
from ackpost.ports.operations import CancelJob, Idempotency, JobSaved
from ackpost.ports.store import Page
from ackpost.service.results import settle

if TYPE_CHECKING:
    from ackpost.service.context import Services


class JobService:
    """Use cases around jobs; what starts one is in the service of what it changes."""

    def __init__(self, services: Services) -> None:
        self._store = services.store
        self._committer = services.committer
        self._clock = services.clock

    async def page(self, tenant: int | None, page: Page) -> list[Job]:
        """List jobs."""
        return await self._store.jobs(tenant, page)

    async def get(self, tenant: int | None, position: int) -> Job:
        """Raises: NotFound."""
        job = await self._store.job(tenant, position)
        if job is None:
            raise NotFound("There is no such job.")
        return job

    async def cancel(self, tenant: int, position: int, idempotency: Idempotency | None = None) -> Job:
        """Stop a job; what it has done stays done. Raises: NotFound, Conflict (it has ended)."""
        operation = CancelJob(tenant, position, self._clock.now_ms(), idempotency)
        return (await settle(self._committer, operation, JobSaved)).job
