"""What ``listen`` and the demo accept as signed."""

from __future__ import annotations

import pytest

from ackpost.cli.verifying import Verifier
from ackpost.core.signing import Signer, generate_ed25519, generate_secret
from ackpost.errors import AckpostError
from ackpost.testing.faults import SeenRequest

NOW_S = 1_752_916_522
BODY = b'{"a":1}'
STANDARD = generate_secret(bytes(range(32)))
OTHER = generate_secret(bytes(32))
PRIVATE, PUBLIC = generate_ed25519(bytes(range(32)))
HEX = "a-shared-secret-of-some-length"


def _request(lines: bytes, body: bytes = BODY) -> SeenRequest:
    headers = tuple(tuple(line.split(": ", 1)) for line in lines.decode().split("\r\n") if line)
    return SeenRequest(1, 1, "POST", "/", "HTTP/1.1", headers, body, 0.0)  # type: ignore[arg-type]  # pairs by split


def _signed(kind: str, *secrets: str, header: str | None = None, at_s: int = NOW_S) -> bytes:
    ends = [None, *[1 << 62] * (len(secrets) - 1)]
    return Signer(kind, list(zip(secrets, ends, strict=True)), header).headers("evt_1", at_s, BODY, NOW_S * 1000)


@pytest.mark.parametrize(
    ("verifier", "lines"),
    [
        (Verifier(STANDARD), _signed("standard", STANDARD)),
        (Verifier(STANDARD), _signed("standard", OTHER, STANDARD)),
        (Verifier(STANDARD.removeprefix("whsec_"), "standard"), _signed("standard", STANDARD)),
        (Verifier(PUBLIC), _signed("standard-ed25519", PRIVATE)),
        (Verifier(PRIVATE), _signed("standard-ed25519", PRIVATE)),
        (Verifier(HEX), _signed("sha256-hex", HEX)),
        (Verifier(HEX), _signed("sha256-hex", "another-secret-of-some-length", HEX)),
        (Verifier(HEX, header="X-Sig"), _signed("sha256-hex", HEX, header="X-Sig")),
    ],
)
def test_what_ackpost_signs_is_verified(verifier: Verifier, lines: bytes) -> None:
    """All three kinds, also when the known secret is the older of two; a changed body is refused."""
    assert verifier.fault(_request(lines), NOW_S) is None
    assert "wrong signature" in (verifier.fault(_request(lines, BODY + b" "), NOW_S) or "")


@pytest.mark.parametrize(
    ("verifier", "lines", "fault"),
    [
        (Verifier(OTHER), _signed("standard", STANDARD), "wrong signature"),
        (Verifier(PUBLIC), _signed("standard", STANDARD), "wrong signature"),
        (
            Verifier(PUBLIC),
            b"webhook-id: a\r\nwebhook-timestamp: 1\r\nwebhook-signature: v1a,!!\r\n",
            "wrong signature",
        ),
        (Verifier("another-secret-of-some-length"), _signed("sha256-hex", HEX), "wrong signature"),
        (Verifier(STANDARD), b"", "not signed: no webhook-id, webhook-timestamp, webhook-signature"),
        (Verifier(HEX), b"", "not signed: no X-Webhook-Signature"),
        (
            Verifier(STANDARD),
            b"webhook-id: a\r\nwebhook-timestamp: x\r\nwebhook-signature: v1,\r\n",
            "webhook-timestamp",
        ),
        (Verifier(STANDARD), _signed("standard", STANDARD, at_s=NOW_S - 301), "signed 301 s ago"),
        (Verifier(STANDARD), _signed("standard", STANDARD, at_s=NOW_S + 301), "signed -301 s ago"),
    ],
)
def test_what_is_refused_and_why(verifier: Verifier, lines: bytes, fault: str) -> None:
    """A foreign, missing, malformed or old signature is refused with its reason."""
    assert (verifier.fault(_request(lines), NOW_S) or "verified").startswith(fault)


def test_300_seconds_are_accepted() -> None:
    """The tolerance includes its bound."""
    for at_s in (NOW_S - 300, NOW_S + 300):
        assert Verifier(STANDARD).fault(_request(_signed("standard", STANDARD, at_s=at_s)), NOW_S) is None


@pytest.mark.parametrize(
    ("secret", "kind"), [("whsec_short", None), ("whpk_AAAA", None), ("whpk_!", None), (STANDARD, "md5"), ("x", None)]
)
def test_a_secret_that_cannot_verify_is_refused(secret: str, kind: str | None) -> None:
    """A cut or mistyped secret, or an unknown kind, is an error of ours at the start."""
    with pytest.raises(AckpostError):
        Verifier(secret, kind)
