"""Says whether a received request is signed as a consumer must demand, or why not (contract §4)."""

from __future__ import annotations

import hmac
from binascii import Error as Base64Error
from binascii import a2b_base64
from typing import Final

from ackpost.core.signing import DEFAULT_SIGNATURE_HEADER, SIGNATURE_KINDS, Signer, public_key_of
from ackpost.errors import ConfigError, SigningError
from ackpost.testing.faults import SeenRequest

TOLERANCE_S: Final = 300
_PREFIXES: Final = {"whsec_": "standard", "whsk_": "standard-ed25519", "whpk_": "standard-ed25519"}


class Verifier:
    """Knows one secret (``whsec_``, ``whsk_``, ``whpk_`` or, for ``sha256-hex``, any text).

    Raises: ConfigError for a kind that does not exist, SigningError for a secret that is none.
    """

    def __init__(self, secret: str, kind: str | None = None, header: str | None = None) -> None:
        by_prefix = (kind for prefix, kind in _PREFIXES.items() if secret.startswith(prefix))
        self.kind = kind or next(by_prefix, "sha256-hex")
        if self.kind not in SIGNATURE_KINDS:
            raise ConfigError(f"--signature must be one of {', '.join(SIGNATURE_KINDS)}")
        self._header = header or DEFAULT_SIGNATURE_HEADER
        if self.kind == "standard-ed25519":
            public = secret if secret.startswith("whpk_") else public_key_of(secret)
            self._public = _public_key_bytes(public)
        else:
            self._signer = Signer(self.kind, [(secret, None)])

    def fault(self, request: SeenRequest, now_s: int) -> str | None:
        """Give why a request is to be refused; None when its signature and time are right."""
        if self.kind == "sha256-hex":
            return self._hex_fault(request)
        event_id, timestamp, signature = (
            request.header(f"webhook-{name}") for name in ("id", "timestamp", "signature")
        )
        if event_id is None or timestamp is None or signature is None:
            missing = [name for name in ("id", "timestamp", "signature") if request.header(f"webhook-{name}") is None]
            return f"not signed: no {', '.join(f'webhook-{name}' for name in missing)}"
        if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 16):
            return "webhook-timestamp is no whole number of seconds"
        if not self._is_signed(event_id, int(timestamp), request.body, signature):
            return "wrong signature: another secret, or the body was changed on its way"
        if abs(now_s - int(timestamp)) > TOLERANCE_S:
            return f"signed {now_s - int(timestamp)} s ago, more than {TOLERANCE_S} s off"
        return None

    def _is_signed(self, event_id: str, timestamp_s: int, body: bytes, signature: str) -> bool:
        tokens = signature.split(" ")
        if self.kind == "standard-ed25519":
            content = b"%b.%d.%b" % (event_id.encode("latin-1"), timestamp_s, body)
            return any(self._verifies(token, content) for token in tokens)
        lines = self._signer.headers(event_id, timestamp_s, body, 0).decode()
        expected = lines.partition("webhook-signature: ")[2].strip()
        return any(_same(token, expected) for token in tokens)

    def _verifies(self, token: str, content: bytes) -> bool:
        # Only here: everything else works without it.
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - see above
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415 - see above

        version, _, text = token.partition(",")
        try:
            Ed25519PublicKey.from_public_bytes(self._public).verify(a2b_base64(text.encode("latin-1")), content)
        except (InvalidSignature, Base64Error):
            return False
        return version == "v1a"

    def _hex_fault(self, request: SeenRequest) -> str | None:
        given = [request.header(name) for name in (self._header, f"{self._header}-Previous")]
        if given[0] is None:
            return f"not signed: no {self._header}"
        lines = self._signer.headers("", 0, request.body, 0).decode()
        expected = lines.partition(f"{DEFAULT_SIGNATURE_HEADER}: ")[2].strip()
        if any(_same(one, expected) for one in given if one is not None):
            return None
        return "wrong signature: another secret, or the body was changed on its way"


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("latin-1"), expected.encode("latin-1"))


def _public_key_bytes(text: str) -> bytes:
    try:
        key = a2b_base64(text.removeprefix("whpk_"))
    except Base64Error:
        key = b""
    if len(key) != 32:
        raise SigningError("a public key is whpk_ and 32 bytes as base64")
    return key
