"""Signatures, judged by the stock libraries and by published vectors."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from datetime import UTC, datetime

import pytest
import standardwebhooks
import svix
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from ackpost.core.signing import Signer, generate_ed25519, generate_secret, masked_headers, public_key_of
from ackpost.errors import SigningError
from tests.core import vectors

NOW_S = int(datetime.now(UTC).timestamp())
NOW_MS = NOW_S * 1000
NEW, OLD, OLDEST = (generate_secret(bytes([number]) * 32) for number in (1, 2, 3))
HOUR_MS = 3_600_000


def parse(lines: bytes) -> dict[str, str]:
    """Read header lines as a server does; each must end properly."""
    assert lines.endswith(b"\r\n")
    pairs = [line.split(": ", 1) for line in lines.decode("ascii").removesuffix("\r\n").split("\r\n")]
    headers = dict(pairs)
    assert len(headers) == len(pairs)
    return headers


@pytest.mark.parametrize("vector", vectors.HMAC)
def test_published_hmac_signatures(vector: vectors.Vector) -> None:
    """Four vectors of three sources, one of them with a key of only 18 bytes' text."""
    lines = Signer("standard", [(vector.secret, None)]).headers(vector.event_id, vector.timestamp_s, vector.body, 0)
    assert lines == b"webhook-id: %b\r\nwebhook-timestamp: %d\r\nwebhook-signature: %b\r\n" % (
        vector.event_id.encode(), vector.timestamp_s, vector.signature,
    )  # fmt: skip


def test_published_ed25519_signature() -> None:
    """The vector of the vendor's server."""
    vector = vectors.ED25519
    signer = Signer("standard-ed25519", [(vector.secret, None)])
    headers = parse(signer.headers(vector.event_id, vector.timestamp_s, vector.body, 0))
    assert headers["webhook-signature"].encode() == vector.signature


BODIES = st.one_of(st.sampled_from(["", "1", "{}"]), st.text()).map(str.encode)


@given(BODIES, st.binary(min_size=24, max_size=75))
def test_stock_libraries_accept_every_signature(body: bytes, key: bytes) -> None:
    """Any body that is text, any key, with the secret written with and without its prefix."""
    text = b64encode(key).decode()
    headers = parse(Signer("standard", [(f"whsec_{text}", None)]).headers("evt_1", NOW_S, body, NOW_MS))
    for secret in (text, f"whsec_{text}"):
        standardwebhooks.Webhook(secret).verify(body, headers, json_parse=False)
    assert parse(Signer("standard", [(text, None)]).headers("evt_1", NOW_S, body, NOW_MS)) == headers


def test_svix_accepts_and_signs_alike() -> None:
    """The other stock library verifies ours, and its own signature is the same bytes."""
    body = '{"n":18446744073709551616,"s":"😊\\u0000"}'
    headers = parse(Signer("standard", [(NEW, None)]).headers("evt_1", NOW_S, body.encode(), NOW_MS))
    judge = svix.webhooks.Webhook(NEW)
    judge.verify(body, headers)
    assert judge.sign("evt_1", datetime.fromtimestamp(NOW_S, UTC), body) == headers["webhook-signature"]


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_another_body_does_not_verify(body: bytes, other: bytes) -> None:
    """Two bodies have one signature only if they are the same bytes; any bytes can be signed."""
    signer = Signer("standard", [(NEW, None)])
    assert (signer.headers("evt_1", 1, body, 0) == signer.headers("evt_1", 1, other, 0)) == (body == other)


@given(st.binary(max_size=200), st.binary(min_size=32, max_size=32), st.integers(0, 2**40))
def test_ed25519_verifies_with_the_public_key_alone(body: bytes, seed: bytes, timestamp_s: int) -> None:
    """The ``whpk_`` text is all that a consumer needs; a changed body fails."""
    secret, public = generate_ed25519(seed)
    assert public_key_of(secret) == public
    headers = parse(Signer("standard-ed25519", [(secret, None)]).headers("evt_1", timestamp_s, body, 0))
    version, signature = headers["webhook-signature"].split(",")
    assert version == "v1a"
    key = Ed25519PublicKey.from_public_bytes(b64decode(public.removeprefix("whpk_")))
    content = b"evt_1.%d." % timestamp_s + body
    key.verify(b64decode(signature), content)
    with pytest.raises(InvalidSignature):
        key.verify(b64decode(signature), content + b" ")


def test_hex_signature_of_the_body_alone() -> None:
    """``sha256-hex``: the key is the secret's text, id and time are unsigned headers of their own."""
    secret = "whsec_this_is_not_decoded_at_all"
    signer = Signer("sha256-hex", [(secret, None)])
    headers = parse(signer.headers("evt_1", 17, b'{"a":1}', 0))
    expected = hmac.new(secret.encode(), b'{"a":1}', hashlib.sha256).hexdigest()
    assert headers == {
        "X-Webhook-Id": "evt_1", "X-Webhook-Timestamp": "17", "X-Webhook-Signature": f"sha256={expected}",
    }  # fmt: skip


def test_a_renamed_hex_header_keeps_its_spelling() -> None:
    """``signature_header`` renames both the new and the previous signature's header, capitals as given."""
    secrets: list[tuple[str, int | None]] = [("n" * 30, None), ("o" * 30, HOUR_MS), ("p" * 30, HOUR_MS)]
    headers = parse(Signer("sha256-hex", secrets, "X-ACME-Sig").headers("evt_1", 17, b"{}", 0))
    digests = [f"sha256={hmac.new(text.encode(), b'{}', 'sha256').hexdigest()}" for text, _ in secrets]
    assert headers["X-ACME-Sig"] == digests[0]
    assert headers["X-ACME-Sig-Previous"] == digests[1]
    assert "X-Webhook-Signature" not in headers


@pytest.mark.parametrize(
    ("now_ms", "live"),
    [
        (0, [NEW, OLD, OLDEST]),
        (HOUR_MS - 1, [NEW, OLD, OLDEST]),
        (HOUR_MS, [NEW, OLD]),
        (24 * HOUR_MS - 1000, [NEW, OLD]),
        (24 * HOUR_MS, [NEW]),
        (24 * HOUR_MS + 1000, [NEW]),
    ],
)
def test_rotation_signs_with_the_live_keys_new_first(now_ms: int, live: list[str]) -> None:
    """Expiry counts at the time of sending; during the overlap both the old and the new secret verify."""
    signer = Signer("standard", [(NEW, None), (OLD, 24 * HOUR_MS), (OLDEST, HOUR_MS)])
    headers = parse(signer.headers("evt_1", NOW_S, b"{}", now_ms))
    alone = [parse(Signer("standard", [(text, None)]).headers("evt_1", NOW_S, b"{}", 0)) for text in live]
    assert headers["webhook-signature"] == " ".join(each["webhook-signature"] for each in alone)
    for secret in (NEW, OLD, OLDEST):
        if secret in live:
            standardwebhooks.Webhook(secret).verify(b"{}", headers)
        else:
            with pytest.raises(standardwebhooks.WebhookVerificationError):
                standardwebhooks.Webhook(secret).verify(b"{}", headers)


def test_an_expired_previous_key_leaves_the_hex_headers() -> None:
    """After its expiry the previous signature is gone; an older but longer-lived one takes its place before."""
    signer = Signer("sha256-hex", [("n" * 30, None), ("o" * 30, 1), ("p" * 30, 2)])
    assert "X-Webhook-Signature-Previous" in parse(signer.headers("evt_1", 17, b"{}", 1))
    assert "X-Webhook-Signature-Previous" not in parse(signer.headers("evt_1", 17, b"{}", 2))


def test_retries_sign_the_new_time_and_the_same_id() -> None:
    """Each attempt has its own timestamp and signature; all verify, with the same id."""
    signer = Signer("standard", [(NEW, None)])
    attempts = [parse(signer.headers("evt_1", NOW_S + wait_s, b"{}", NOW_MS)) for wait_s in (0, 5, 60)]
    assert len({headers["webhook-signature"] for headers in attempts}) == 3
    assert {headers["webhook-id"] for headers in attempts} == {"evt_1"}
    for headers in attempts:
        standardwebhooks.Webhook(NEW).verify(b"{}", headers)


@pytest.mark.parametrize("secrets", [[], [(NEW, 5)], [("", None)], [("whsec_", None)], [(None, None)], [(b"", None)]])
def test_a_signer_without_a_usable_current_secret_cannot_be_made(secrets: list[tuple[str, int | None]]) -> None:
    """An empty or missing key fails when the signer is made, not by signing with nothing."""
    with pytest.raises(SigningError):
        Signer("standard", secrets)


@pytest.mark.parametrize("kind", ["standard", "standard-ed25519", "sha256-hex"])
def test_a_past_attempt_is_shown_without_its_signature(kind: str) -> None:
    """The shown headers have the names that were sent, with the signature hidden."""
    secret = {"standard": NEW, "standard-ed25519": generate_ed25519(bytes(32))[0], "sha256-hex": "n" * 30}[kind]
    sent = parse(Signer(kind, [(secret, None)], "X-Sig").headers("evt_1", 17, b"{}", 0))
    shown = dict(masked_headers(kind, "evt_1", 17, "X-Sig"))
    assert list(shown) == list(sent)
    hidden = [name for name in sent if shown[name] != sent[name]]
    assert len(hidden) == 1
    assert shown[hidden[0]].endswith("***")
    assert sent[hidden[0]].startswith(shown[hidden[0]].removesuffix("***"))


def test_a_signer_shows_no_secret() -> None:
    """Neither its text nor its attributes' text has the key in it."""
    signer = Signer("standard", [(NEW, None)])
    shown = repr(signer) + "".join(repr(getattr(signer, name)) for name in Signer.__slots__)
    assert NEW.removeprefix("whsec_") not in shown
    assert repr(bytes([1]) * 32) not in shown
