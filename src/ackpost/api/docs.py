"""``/openapi.json`` and ``/docs``: the API described, for programs and for people. Nothing is loaded from elsewhere."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from litestar import get
from litestar.datastructures import State
from litestar.response import Response
from litestar.types import ControllerRouterHandler

from ackpost.api.openapi import Document

DOCUMENT_KEY: Final = "openapi"

PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {"content-security-policy": PAGE_POLICY}


@cache
def _file(name: str) -> bytes:
    return files("ackpost.api").joinpath("static", name).read_bytes()


@get("/openapi.json", public=True, tags=["System"], summary="This description")
async def openapi_json(state: State) -> Response[bytes]:
    """The OpenAPI 3.1 document."""
    document: Document = state[DOCUMENT_KEY]
    return Response(document.encoded, media_type="application/json")


@get("/docs", public=True, tags=["System"], summary="The docs page", media_type="text/html")
async def docs_page() -> Response[bytes]:
    """The same for people; the page needs no other server."""
    return Response(_file("docs.html"), media_type="text/html; charset=utf-8", headers=_HEADERS)


@get("/docs/docs.js", public=True, include_in_schema=False)
async def docs_script() -> Response[bytes]:
    """The page's script."""
    return Response(_file("docs.js"), media_type="text/javascript; charset=utf-8")


@get("/docs/docs.css", public=True, include_in_schema=False)
async def docs_style() -> Response[bytes]:
    """The page's style."""
    return Response(_file("docs.css"), media_type="text/css; charset=utf-8")


ROUTES: Final[list[ControllerRouterHandler]] = [openapi_json, docs_page, docs_script, docs_style]
