"""One commit: operations in order, runs of accepts together, refusals kept apart from each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

from ackpost.errors import RequestError, StoreLocked
from ackpost.ports import operations as ops
from ackpost.ports.operations import Accept, Idempotency, Operation, Record, Repeated, Result
from ackpost.store.postgres import deliveries, endpoints, jobs, retention, tenants
from ackpost.store.postgres.accept import accept, keys_of, lock_named_keys
from ackpost.store.postgres.answers import Answers
from ackpost.store.postgres.ledger import Ledger
from ackpost.store.postgres.owning import LOCK_LEASE, renew_lease
from ackpost.store.postgres.querying import NOW_MS
from ackpost.store.postgres.record import record

Reply = Result | Repeated | RequestError

_APPLY: Final[dict[type[Operation], Callable[[Ledger, Any], Awaitable[Result]]]] = {
    ops.Interrupt: deliveries.interrupt,
    ops.CreateTenant: tenants.create_tenant,
    ops.ReplaceTenant: tenants.replace_tenant,
    ops.DeleteTenant: tenants.delete_tenant,
    ops.CreateApiKey: tenants.create_api_key,
    ops.DeleteApiKey: tenants.delete_api_key,
    ops.TouchApiKeys: tenants.touch_api_keys,
    ops.CreateEndpoint: endpoints.create_endpoint,
    ops.ReplaceEndpoint: endpoints.replace_endpoint,
    ops.DeleteEndpoint: endpoints.delete_endpoint,
    ops.SetEndpointState: endpoints.set_endpoint_state,
    ops.RotateSecret: endpoints.rotate_secret,
    ops.Redeliver: deliveries.redeliver,
    ops.Cancel: deliveries.cancel,
    ops.ExpireData: deliveries.expire_data,
    ops.Promote: deliveries.promote,
    ops.CreateJob: jobs.create_job,
    ops.CancelJob: jobs.cancel_job,
    ops.StepJob: jobs.step_job,
    ops.Retain: retention.retain,
    ops.RenewLease: renew_lease,
}

# The fence (rule E3), and with it what every commit has to know. The lock of the node's own row lasts until the commit:
# a takeover waits for it, and so does a second transaction of this node, whose first one may still be under way on the
# server after its connection was lost. So a node's commits come one after another, in the order of their positions.
# The time is read when the lock is held, so that whoever waits for the lock at a time knows what the commit lies above.
FENCE: Final = f"""
WITH me AS MATERIALIZED (SELECT 1 FROM node WHERE id = $1 AND incarnation = $2 AND alive FOR NO KEY UPDATE)
SELECT {NOW_MS}, (SELECT oldest_day FROM meta),
    (SELECT array_agg(t.position ORDER BY t.position) FROM tenant t WHERE t.position = ANY($3) AND NOT t.deleted),
    (SELECT array_agg(t.routing_version ORDER BY t.position) FROM tenant t
     WHERE t.position = ANY($3) AND NOT t.deleted)
FROM me
"""  # noqa: S608 - constants only
OWNER: Final = "SELECT id FROM node WHERE alive ORDER BY incarnation DESC LIMIT 1"


async def apply(ledger: Ledger, operations: Sequence[Operation]) -> list[Reply]:
    """Apply operations in order inside the transaction that is open.

    Raises: StoreLocked when this is not the owner any more.
    """
    accepts = [operation for operation in operations if type(operation) is Accept]
    if any(type(operation) is ops.RenewLease for operation in operations):
        # A takeover locks the lease, then the node: so does this.
        await ledger.one(LOCK_LEASE, ledger.node)
    await _check_owner(ledger, sorted({operation.tenant for operation in accepts}))
    runs = _runs_of(operations)
    if len(runs) > 1 and accepts:
        # Before anything else is locked (rule E4): a later run of this commit must not wait for a key.
        await lock_named_keys(ledger, keys_of(accepts))
    replies: list[Reply] = []
    for run in runs:
        if type(run[0]) is Accept:
            replies += await accept(ledger, cast("list[Accept]", run))
        elif type(run[0]) is Record:
            replies.append(await record(ledger, run[0]))
        else:
            replies.append(await _apply_alone(ledger, run[0]))
    await ledger.store_bound()
    return replies


def _runs_of(operations: Sequence[Operation]) -> list[list[Operation]]:
    """Put accepts that follow each other together."""
    runs: list[list[Operation]] = []
    for operation in operations:
        if runs and type(operation) is Accept and type(runs[-1][0]) is Accept:
            runs[-1].append(operation)
        else:
            runs.append([operation])
    return runs


async def _check_owner(ledger: Ledger, tenants: list[int]) -> None:
    row = await ledger.one(FENCE, ledger.node, ledger.incarnation, tenants)
    if row is None:
        owner = await ledger.one(OWNER)
        told = "by nobody" if owner is None else f"by node {owner[0]}"
        raise StoreLocked(f"This server does not own the database any more; it is owned {told}.")
    now_ms, oldest_day, positions, versions = row
    ledger.floor_ms = now_ms if ledger.is_shared else 0
    ledger.oldest_day = oldest_day
    ledger.versions = dict.fromkeys(tenants)
    ledger.versions.update(zip(positions or (), versions or (), strict=True))


async def _apply_alone(ledger: Ledger, operation: Operation) -> Reply:
    """Apply one operation of a person or of housekeeping; a refusal undoes all of it."""
    asked = cast("Idempotency | None", getattr(operation, "idempotency", None))
    answers = Answers()
    mark = ledger.mark()
    await ledger.execute("SAVEPOINT operation")
    try:
        await answers.load(ledger, [asked])
        repeated = answers.repeated(asked)
        if repeated is not None:
            return repeated
        result = await _APPLY[type(operation)](ledger, operation)
        answers.remember(asked, result)
        await answers.flush(ledger)
    except RequestError as refusal:
        await ledger.execute("ROLLBACK TO operation")
        ledger.restore(mark)
        return refusal
    await ledger.execute("RELEASE operation")
    return result
