"""Refusals as ``application/problem+json`` (RFC 9457): every answer from 400 on, whoever refuses."""

from __future__ import annotations

import re
import traceback
from http import HTTPStatus
from typing import Final

import msgspec
from litestar.exceptions import HTTPException, ValidationException
from litestar.response import Response

from ackpost.api.request import ClientGone, StrictRequest
from ackpost.errors import FieldError, InvalidInput, RequestError, StoreError, StoreFull
from ackpost.service.context import Services

MEDIA_TYPE: Final = "application/problem+json"

CODES: Final[dict[int, tuple[str, ...]]] = {
    400: ("malformed_json", "bad_request"),
    401: ("unauthenticated",),
    403: ("forbidden",),
    404: ("not_found", "unknown_tenant"),
    405: ("method_not_allowed",),
    409: ("idempotency_conflict", "uid_conflict", "sequence_not_rising", "invalid_state", "already_exists"),
    410: ("data_expired",),
    413: ("too_large",),
    422: ("invalid", "tenant_required", "selector_required", "blocked_target", "too_many_deliveries"),
    429: ("rate_limited",),
    500: ("internal_error",),
    503: ("overloaded", "storage_full", "starting", "outcome_unknown"),
}
"""Every code by its status. ``bad_request`` is HTTP that is no proper request (a wrong Host, a broken length)."""

HOT_PATHS_KEY: Final = "hot_paths"

_CODE_OF: Final = {
    400: "bad_request", 401: "unauthenticated", 403: "forbidden", 404: "not_found", 405: "method_not_allowed",
    413: "too_large", 422: "invalid", 429: "rate_limited", 503: "overloaded",
}  # fmt: skip
_DETAIL_OF: Final = {
    404: "There is nothing at this path; the calls are under /v1, described at /docs.",
    405: "This path does not have that method.",
    413: "The body is larger than this call takes.",
}


_MISSING_QUERY: Final = re.compile(r"Missing required query parameter '(\w+)'")


class ProblemError(msgspec.Struct):
    """One refused input: where it is, and what would be right."""

    loc: list[str | int]
    message: str


class Problem(msgspec.Struct):
    """Why a call was refused. ``code`` is stable; ``errors`` names each refused input, always for a 422."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    errors: list[ProblemError] | msgspec.UnsetType = msgspec.UNSET


class RenderedProblem(msgspec.Struct):
    """A problem ready to be sent."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


def render(error: RequestError) -> RenderedProblem:
    """Give status, headers and body of a refusal."""
    problem = Problem(
        type="about:blank",
        title=HTTPStatus(error.status).phrase,
        status=error.status,
        code=error.code,
        detail=error.detail,
    )
    if error.errors or error.status == 422:
        problem.errors = [ProblemError(list(each.loc), each.message) for each in error.errors]
    headers: list[tuple[str, str]] = []
    if error.status == 401:
        headers.append(("www-authenticate", 'Bearer realm="ackpost"'))
    if error.status == 413:
        # The rest of the body is not read: the connection cannot be used again.
        headers.append(("connection", "close"))
    if error.status in {429, 503}:
        headers.append(("retry-after", str(error.retry_after_s or 1)))
    return RenderedProblem(error.status, headers, msgspec.json.encode(problem))


def as_request_error(error: Exception, *, query_names: frozenset[str] = frozenset()) -> RequestError:
    """Give the refusal that an exception amounts to; one nobody expected becomes 500 ``internal_error``."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, ValidationException):
        return _invalid(error, query_names)
    if isinstance(error, HTTPException):
        status = error.status_code
        if status in _CODE_OF:
            return _refusal(status, _CODE_OF[status], _DETAIL_OF.get(status, error.detail))
    if isinstance(error, StoreFull):
        return _refusal(503, "storage_full", "There is no space left where the database lies.", retry_after_s=30)
    if isinstance(error, StoreError):
        return _refusal(503, "overloaded", "The database cannot answer now.", retry_after_s=1)
    return _refusal(500, "internal_error", "The server failed at this request; its log says more.")


def handle(request: StrictRequest, error: Exception) -> Response[bytes]:
    """Litestar's handler of every exception."""
    refusal = as_request_error(error, query_names=frozenset(request.query_params))
    note_failure(request.app.state.services, error, request.method, request.scope.get("path_template", ""))
    rendered = render(refusal)
    headers = dict(rendered.headers)
    if refusal.status == 405:
        headers["allow"] = _allowed(request, error)
    return Response(rendered.body, status_code=rendered.status, media_type=MEDIA_TYPE, headers=headers)


def _allowed(request: StrictRequest, error: Exception) -> str:
    """Give the methods of a path: those that the router knows, and those of the calls before it."""
    known = error.headers.get("allow", "") if isinstance(error, HTTPException) and error.headers else ""
    methods = {method for method in known.split(", ") if method and method != "OPTIONS"}
    if request.scope["path"] in request.app.state[HOT_PATHS_KEY]:
        methods.add("POST")
    if "GET" in methods:
        methods.add("HEAD")
    return ", ".join(sorted(methods))


def note_failure(services: Services, error: Exception, method: str, path: str) -> None:
    """Tell of what is our fault: where it happened, but not the message, which may hold what nobody may read."""
    if isinstance(error, RequestError | HTTPException | ClientGone):
        return
    name = "api.store_trouble" if isinstance(error, StoreError) else "api.internal_error"
    frames = "".join(traceback.format_tb(error.__traceback__)[-12:])
    services.counters.note(name, method=method, path=path, error=type(error).__name__, frames=frames)


def _refusal(status: int, code: str, detail: str, *, retry_after_s: int | None = None) -> RequestError:
    refusal = RequestError(detail, code=code, retry_after_s=retry_after_s)
    refusal.status = status
    return refusal


def _invalid(error: ValidationException, query_names: frozenset[str]) -> RequestError:
    errors: list[FieldError] = []
    missing = _MISSING_QUERY.match(error.detail)
    if missing is not None:
        errors.append(FieldError(("query", missing[1]), "is missing"))
    extra = error.extra if isinstance(error.extra, list) else []
    for each in extra:
        name = str(each.get("key", ""))
        if name == "data" and each.get("message") == "'data'":
            # No body: the framework says so whenever anything is wrong, even where it may be left out.
            if len(extra) == 1:
                errors.append(FieldError(("body",), "is missing"))
            continue
        source = each.get("source", "query" if name in query_names else "body")
        loc = (str(getattr(source, "value", source)), *(part for part in name.split(".") if part and part != "data"))
        errors.append(FieldError(loc, _worded(str(each.get("message", "is not valid")))))
    detail = "; ".join(f"{'.'.join(map(str, each.loc))}: {each.message}" for each in errors[:3])
    return InvalidInput(detail or "The request is not valid.", errors=errors)


def _worded(message: str) -> str:
    """Say what is wrong in JSON's words."""
    if message.startswith("Object missing required field"):
        return "is missing"
    for python_name, json_name in (("`str`", "`string`"), ("`int`", "`integer`"), ("`float`", "`number`")):
        message = message.replace(python_name, json_name)
    return message[:1].lower() + message[1:]
