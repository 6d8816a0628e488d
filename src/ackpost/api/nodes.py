"""``/v1/nodes``: the servers that deliver together, for operators only (contract §9)."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from litestar import get
from litestar.types import ControllerRouterHandler

from ackpost.api.guards import Call
from ackpost.api.params import Listing
from ackpost.api.views import time_text
from ackpost.core.times import rfc3339_ms
from ackpost.ports.cluster import Role
from ackpost.service.auth import OPERATOR
from ackpost.service.nodes import NodeState, ShownNode

_TAGS: Final = ["System"]


class NodeView(msgspec.Struct):
    """A server. `expired`: its lease has run out, and others are about to take what it owns."""

    id: Annotated[str, msgspec.Meta(description="Its name, as in attempts and logs.")]
    role: Annotated[Role, msgspec.Meta(description="`api` accepts, `engine` delivers, `all` does both.")]
    state: Annotated[NodeState, msgspec.Meta(description="`leaving`: it stops and hands over what it owns.")]
    version: Annotated[str, msgspec.Meta(description="The version that it runs.")]
    partitions: Annotated[int, msgspec.Meta(description="How many of the 256 shares of the endpoints it owns.")]
    oldest_due_at: Annotated[
        str | None,
        msgspec.Meta(
            description="Since when the delivery that waits longest there is due, paused endpoints and open circuits"
            " included; null: none waits."
        ),
    ]
    since: Annotated[str, msgspec.Meta(description="When it started.")]
    lease_expires_at: Annotated[str, msgspec.Meta(description="When others may take over unless it renews before.")]


def _view(node: ShownNode) -> NodeView:
    return NodeView(
        id=node.info.id,
        role=node.info.role,
        state=node.state,
        version=node.info.version,
        partitions=len(node.info.partitions),
        oldest_due_at=time_text(node.oldest_due_ms),
        since=rfc3339_ms(node.info.since_ms),
        lease_expires_at=rfc3339_ms(node.lease_expires_ms),
    )


@get("/v1/nodes", roles=OPERATOR, tenants=None, tags=_TAGS, summary="List nodes")
async def list_nodes(call: Call) -> Listing[NodeView]:
    """List the servers that deliver together, by name: all of them on one page, at most 64."""
    return Listing([_view(node) for node in await call.services.nodes.all()], next=None, previous=None)


ROUTES: Final[list[ControllerRouterHandler]] = [list_nodes]
