"""The ASGI app: the two hot calls, and before all others Litestar's router."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from litestar import Litestar
from litestar.datastructures import State
from litestar.routes import HTTPRoute
from litestar.types import ControllerRouterHandler

from ackpost.api import direct, security
from ackpost.api.dependencies import DEPENDENCIES
from ackpost.api.docs import DOCUMENT_KEY
from ackpost.api.guards import METHODS_KEY, QUERIES_KEY, guard
from ackpost.api.openapi import Document
from ackpost.api.params import query_names
from ackpost.api.problem import HOT_PATHS_KEY, MEDIA_TYPE, handle, render
from ackpost.api.publish import PublishEndpoint
from ackpost.api.request import ClientGone, StrictRequest
from ackpost.api.resources import ROUTES
from ackpost.api.security import secured
from ackpost.errors import NotFound
from ackpost.service.context import Services

WATCHED_PATHS: Final = frozenset({"/healthz", "/readyz", "/metrics"})


class App:
    """What uvicorn serves. ``litestar`` is the router behind it; ``direct`` what needs no ASGI, by path."""

    def __init__(self, services: Services, more_routes: Sequence[ControllerRouterHandler] = ()) -> None:
        self.direct = {direct.PATH: direct.DirectPublish(services)}
        self._hot = PublishEndpoint(services).paths
        self.litestar = _litestar(services, [*ROUTES, *more_routes])
        self.litestar.state[DOCUMENT_KEY] = Document(ROUTES)
        self.litestar.state[HOT_PATHS_KEY] = frozenset(self._hot)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection's request."""
        if scope["type"] == "http":
            if scope["method"] == "POST":
                hot = self._hot.get(scope["path"])
                if hot is not None:
                    await hot(scope, receive, send)
                    return
            elif scope["method"] == "HEAD":
                # As GET; the server leaves the body out of its answer.
                scope = {**scope, "method": "GET"}
            try:
                await self.litestar(scope, receive, secured(send))
            except ClientGone:
                return
        else:
            await self.litestar(scope, receive, send)


class WatchedApp:
    """What a server answers that only delivers: whether it lives and works, and its metrics."""

    def __init__(self, services: Services) -> None:
        self._app = App(services)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection's request."""
        if scope["type"] != "http" or scope["path"] in WATCHED_PATHS:
            await self._app(scope, receive, send)
            return
        problem = render(NotFound("This server only delivers (node_role engine); call one that serves the API."))
        headers = [(name.encode(), value.encode()) for name, value in problem.headers]
        headers += [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(problem.body))]
        headers += security.ALL
        await send({"type": "http.response.start", "status": problem.status, "headers": headers})
        await send({"type": "http.response.body", "body": problem.body})


def create_app(services: Services, more_routes: Sequence[ControllerRouterHandler] = ()) -> App:
    """Make the app; ``more_routes`` are those of other packages (the pages)."""
    return App(services, more_routes)


def _litestar(services: Services, routes: Sequence[ControllerRouterHandler]) -> Litestar:
    app = Litestar(
        route_handlers=routes,
        request_class=StrictRequest,
        guards=[guard],
        dependencies=DEPENDENCIES,
        exception_handlers={Exception: handle},  # type: ignore[dict-item]  # our request class is the app's
        state=State({"services": services}),
        openapi_config=None,
        logging_config=None,
        debug=False,
    )
    routes_made = [route for route in app.routes if isinstance(route, HTTPRoute)]
    app.state[QUERIES_KEY] = {
        (route.path_format, method): query_names(model)
        for route in routes_made
        for method, (_, model) in route.route_handler_map.items()
    }
    app.state[METHODS_KEY] = {route.path_format: sorted(route.route_handler_map) for route in routes_made}
    return app
