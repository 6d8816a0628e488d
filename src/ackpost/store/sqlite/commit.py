"""One commit: operations in order, runs of accepts together, refusals kept apart from each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from ackpost.errors import RequestError
from ackpost.ports import operations as ops
from ackpost.ports.operations import Accept, Idempotency, Operation, Record, Repeated, Result
from ackpost.store.sqlite import deliveries, endpoints, jobs, retention, tenants
from ackpost.store.sqlite.accept import accept
from ackpost.store.sqlite.answers import Answers
from ackpost.store.sqlite.lease import renew_lease
from ackpost.store.sqlite.ledger import Ledger
from ackpost.store.sqlite.record import record

Reply = Result | Repeated | RequestError

_APPLY: Final[dict[type[Operation], Callable[[Ledger, Any], Result]]] = {
    ops.Record: record,
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


def apply(ledger: Ledger, operations: Sequence[Operation]) -> list[Reply]:
    """Apply operations in order inside the transaction that is open.

    Raises: StoreLocked when this is not the owner any more.
    """
    replies: list[Reply] = []
    run: list[Accept] = []
    for operation in operations:
        if type(operation) is Accept:
            run.append(operation)
            continue
        if run:
            replies += accept(ledger, run)
            run = []
        if type(operation) is Record:
            replies.append(record(ledger, operation))
        else:
            replies.append(_apply_alone(ledger, operation))
    if run:
        replies += accept(ledger, run)
    return replies


def _apply_alone(ledger: Ledger, operation: Operation) -> Reply:
    """Apply one operation of a person or of housekeeping; a refusal undoes all of it."""
    asked = cast("Idempotency | None", getattr(operation, "idempotency", None))
    answers = Answers(ledger, [asked])
    mark = ledger.mark()
    ledger.execute("SAVEPOINT operation")
    try:
        repeated = answers.repeated(asked)
        if repeated is not None:
            return repeated
        result = _APPLY[type(operation)](ledger, operation)
        answers.remember(asked, result)
        answers.flush(ledger)
    except RequestError as refusal:
        ledger.execute("ROLLBACK TO operation")
        ledger.restore(mark)
        return refusal
    finally:
        ledger.execute("RELEASE operation")
    return result
