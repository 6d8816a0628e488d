"""How the commands talk to a server of ours: ``ACKPOST_URL``, ``ACKPOST_API_KEY``, a tenant.

This is no second egress client: it calls the one server its user names and follows nothing.
"""

from __future__ import annotations

import http.client
import json
import os
import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from ackpost.cli.show import plain
from ackpost.errors import AckpostError, ConfigError

URL_DEFAULT: Final = "http://127.0.0.1:8080"
_DEV_KEY_PATH: Final = Path(".ackpost/dev-key")
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_HEADER_TEXT: Final = re.compile(r"[!-~]+")
_DIGITS_MAX: Final = 4_000


class Unreachable(ConfigError):
    """The server gave no answer; whether it did what was asked is not known."""


class ApiFailed(AckpostError):
    """The server refused a call; ``problem`` is its answer (RFC 9457)."""

    def __init__(self, status: int, problem: dict[str, Any], retry_after_s: int | None = None) -> None:
        self.status = status
        self.problem = problem
        self.retry_after_s = retry_after_s
        found = problem.get("errors", ())
        errors = "; ".join(f"{'.'.join(str(part) for part in one['loc'])} {one['message']}" for one in found)
        detail = problem.get("detail", problem.get("title", "refused"))
        if not errors or (any(one["message"] in detail for one in found[:1]) and len(found) == 1):
            text = detail
        else:
            text = f"{detail} ({errors})"
        code = f" {problem['code']}" if "code" in problem else ""
        super().__init__(plain(f"{status}{code}: {text}"))


class ApiClient:
    """Calls the API. Raises ``ApiFailed`` for an answer ≥ 400, ``Unreachable`` when there is none."""

    def __init__(self, url: str, key: str, tenant: str | None = None, *, timeout_s: float = 60.0) -> None:
        self._https, self._host, self._port, self._prefix = _parsed(url)
        self._timeout_s = timeout_s
        self._headers = {"Authorization": f"Bearer {_header_text('the API key', key)}"}
        if tenant is not None:
            self._headers["Ackpost-Tenant"] = _header_text("--tenant", tenant)

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: dict[str, object] | None = None,
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Any:
        """Make one call and give the decoded answer (None without content); ``raw`` is a ready body."""
        return decoded(self.call_bytes(method, path, body, query=query, headers=headers, raw=raw))

    def call_bytes(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: dict[str, object] | None = None,
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
    ) -> bytes:
        """Make one call and give the answer's bytes."""
        target = self._prefix + path
        given = {name: value for name, value in (query or {}).items() if value is not None}
        if given:
            target += "?" + urlencode(given)
        content = raw if raw is not None else (None if body is None else json.dumps(body).encode())
        kind = http.client.HTTPSConnection if self._https else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._timeout_s)
        sent = {**self._headers, **({} if content is None else {"Content-Type": "application/json"}), **(headers or {})}
        try:
            connection.request(method, target, body=content, headers=sent)
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            where = f"{self._host}:{self._port}" if self._port else self._host
            raise Unreachable(
                f"no answer from {where} ({plain(str(error).strip())}); is the server up? ACKPOST_URL names it"
            ) from error
        finally:
            connection.close()
        if answer.status >= 300:
            raise ApiFailed(answer.status, _problem(text), _whole(answer.getheader("Retry-After")))
        return text


def connect(tenant: str | None = None) -> ApiClient:
    """Give a client as the environment says; a developer's server is found by its key file.

    Raises: ConfigError.
    """
    url = os.environ.get("ACKPOST_URL") or URL_DEFAULT
    key = os.environ.get("ACKPOST_API_KEY") or _dev_key(url)
    if key is None:
        raise ConfigError(
            "ACKPOST_API_KEY is not set: export an API key of the server "
            f"(serve --dev keeps its own in {_DEV_KEY_PATH})"
        )
    return ApiClient(url, key, tenant)


def decoded(answer: bytes) -> Any:
    """Read an answer; numbers too long for Python stay text."""
    return json.loads(answer, parse_int=_int) if answer else None


def _int(text: str) -> int | str:
    return int(text) if len(text) < _DIGITS_MAX else text


def _parsed(url: str) -> tuple[bool, str, int | None, str]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in {"http", "https"} or not parts.hostname or not url.isascii() or " " in url:
        raise ConfigError(f"ACKPOST_URL: {url} is no server's URL; use something like {URL_DEFAULT}")
    return parts.scheme == "https", parts.hostname, port, parts.path.rstrip("/")


def _dev_key(url: str) -> str | None:
    """Give the key that ``ackpost serve --dev`` left in this folder; only a server on this machine gets it."""
    if _parsed(url)[1] not in _LOOPBACK:
        return None
    try:
        return _DEV_KEY_PATH.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _header_text(name: str, text: str) -> str:
    if not _HEADER_TEXT.fullmatch(text):
        raise ConfigError(f"{name} must be printable ASCII without blanks")
    return text


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _problem(text: bytes) -> dict[str, Any]:
    try:
        problem = json.loads(text)
    except ValueError:
        problem = None
    if isinstance(problem, dict):
        return problem
    return {"detail": f"this is no answer of Ackpost: {text[:200].decode(errors='replace')!r}"}
