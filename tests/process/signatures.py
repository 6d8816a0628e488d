"""Checks of what arrived by the stock libraries, or by the contract's own words where there is none."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence

import standardwebhooks
import svix
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from ackpost.testing.faults import SeenRequest


def check_standard(request: SeenRequest, *secrets: str) -> None:
    """``standardwebhooks`` and ``svix`` accept the request with each of these secrets."""
    headers = {name.lower(): value for name, value in request.headers}
    for secret in secrets:
        standardwebhooks.Webhook(secret).verify(request.body, headers)
        svix.Webhook(secret).verify(request.body, headers)


def is_signed(request: SeenRequest, secret: str) -> bool:
    """Whether ``standardwebhooks`` accepts the request with this secret."""
    headers = {name.lower(): value for name, value in request.headers}
    try:
        standardwebhooks.Webhook(secret).verify(request.body, headers)
    except standardwebhooks.webhooks.WebhookVerificationError:
        return False
    return True


def check_ed25519(request: SeenRequest, public_key: str) -> None:
    """The one signature is by the endpoint's key, over id, time and body."""
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public_key.removeprefix("whpk_")))
    version, _, signature = _header(request, "webhook-signature").partition(",")
    assert version == "v1a"
    text = f"{_header(request, 'webhook-id')}.{_header(request, 'webhook-timestamp')}.".encode() + request.body
    key.verify(base64.b64decode(signature), text)


def check_hex(request: SeenRequest, secret: str) -> None:
    """The header is the hexadecimal HMAC of the body, with the secret's text as key."""
    expected = hmac.new(secret.encode(), request.body, hashlib.sha256).hexdigest()
    assert _header(request, "x-webhook-signature") == f"sha256={expected}"


def check_all(requests: Sequence[SeenRequest], secret: str) -> None:
    """Each request verifies, all have the same id and the same bytes, and attempts are counted from 1."""
    for request in requests:
        check_standard(request, secret)
    assert len({(_header(request, "webhook-id"), request.body) for request in requests}) == 1
    attempts = [_header(request, "ackpost-attempt") for request in requests]
    assert attempts == [str(number) for number in range(1, len(requests) + 1)]


def _header(request: SeenRequest, name: str) -> str:
    value = request.header(name)
    assert value is not None, f"no header {name}"
    return value
