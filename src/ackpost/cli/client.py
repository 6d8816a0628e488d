"""How the commands talk to a server of ours: ``ACKPOST_URL``, ``ACKPOST_API_KEY``, a tenant.

This is no second egress client: it calls the one server its user names and follows nothing.
"""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlencode, urlsplit

from ackpost.errors import AckpostError, ConfigError


class ApiFailed(AckpostError):
    """The server refused a call; ``problem`` is its answer (RFC 9457)."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        self.status = status
        self.problem = problem
        errors = "; ".join(
            f"{'.'.join(str(part) for part in one['loc'])}: {one['message']}" for one in problem.get("errors", ())
        )
        detail = problem.get("detail", problem.get("title", "refused"))
        super().__init__(f"{status} {problem.get('code', '')}: {detail}{' (' + errors + ')' if errors else ''}")


class ApiClient:
    """Calls the API. Raises ``ApiFailed`` for an answer ≥ 400, ``ConfigError`` when the server cannot be reached."""

    def __init__(self, url: str, key: str, tenant: str | None = None, *, timeout_s: float = 60.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url} is no server URL; use something like http://127.0.0.1:8080")
        self._https = parts.scheme == "https"
        self._host, self._port, self._prefix = parts.hostname, parts.port, parts.path.rstrip("/")
        self._timeout_s = timeout_s
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        if tenant is not None:
            self._headers["Ackpost-Tenant"] = tenant

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
        answer = self.call_bytes(method, path, body, query=query, headers=headers, raw=raw)
        return json.loads(answer) if answer else None

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
        try:
            connection.request(method, target, body=content, headers={**self._headers, **(headers or {})})
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ConfigError(f"No answer from {self._host}:{self._port or ''} ({error}); is the server up?") from error
        finally:
            connection.close()
        if answer.status >= 400:
            raise ApiFailed(answer.status, _problem(text))
        return text


def _problem(text: bytes) -> dict[str, Any]:
    try:
        problem = json.loads(text)
    except ValueError:
        problem = None
    return problem if isinstance(problem, dict) else {"detail": text[:200].decode(errors="replace")}
