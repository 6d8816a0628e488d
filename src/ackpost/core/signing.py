"""Secrets, and the header lines that sign a request (contract §4).

Needs no third-party package but ``cryptography``, and that only for ed25519.
Source: Standard Webhooks 1.0.0 for ``standard`` and ``standard-ed25519``.
"""

from __future__ import annotations

import re
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64, hexlify
from collections.abc import Callable, Sequence
from hmac import digest as hmac_digest
from typing import TYPE_CHECKING, Final, Literal

from ackpost.errors import SigningError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SignatureKind = Literal["standard", "standard-ed25519", "sha256-hex"]

SIGNATURE_KINDS: Final[tuple[SignatureKind, ...]] = ("standard", "standard-ed25519", "sha256-hex")
DEFAULT_SIGNATURE_HEADER: Final = "X-Webhook-Signature"
SECRET_RANDOM_BYTES: Final = 32
"""How many random bytes a new secret of any kind is made from."""

_HMAC_KEY_BYTES_MIN, _HMAC_KEY_BYTES_MAX = 24, 75
_HMAC_KEY_BYTES_USABLE: Final = 16
_TEXT_KEY_CHARS_MIN, _TEXT_KEY_CHARS_MAX = 24, 256
_ED25519_KEY_BYTES: Final = 64
_SECRET_PREFIX, _PRIVATE_PREFIX, _PUBLIC_PREFIX = "whsec_", "whsk_", "whpk_"
_ENVELOPE: Final = "v0:"
_NEVER_MS: Final = 1 << 63
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_PRINTABLE: Final = re.compile(r"[ -~]*")

# A key's whole work on one request: the content (or body) in, its token for the signature header out.
_Sign = Callable[[bytes], bytes]


def generate_secret(random_bytes: bytes) -> str:
    """Make the text of a ``standard`` secret from 32 random bytes."""
    return _SECRET_PREFIX + _base64(random_bytes)


def generate_ed25519(seed: bytes) -> tuple[str, str]:
    """Make the (private, public) texts of a ``standard-ed25519`` key from 32 random bytes.

    Raises: SigningError when ``cryptography`` is not installed.
    """
    public = _private_key(seed).public_key().public_bytes_raw()
    return _PRIVATE_PREFIX + _base64(seed + public), _PUBLIC_PREFIX + _base64(public)


def new_secret(kind: SignatureKind, random_bytes: bytes) -> str:
    """Make a new secret of any kind from 32 random bytes.

    For ``sha256-hex``, whose key is the text itself, it has no prefix that would ask for decoding.
    """
    if kind == "standard-ed25519":
        return generate_ed25519(random_bytes)[0]
    if kind == "sha256-hex":
        return random_bytes.hex()
    return generate_secret(random_bytes)


def normalise_secret(kind: str, text: str) -> str:
    """Check a secret that a user gave and write it in its one form.

    Raises: SigningError with the likely mistake, never with the secret.
    """
    if kind == "standard":
        key = _hmac_key(text)
        if not _HMAC_KEY_BYTES_MIN <= len(key) <= _HMAC_KEY_BYTES_MAX:
            raise SigningError(
                f"the secret has {len(key)} bytes after base64; it must have {_HMAC_KEY_BYTES_MIN} to"
                f" {_HMAC_KEY_BYTES_MAX}"
            )
        return _SECRET_PREFIX + _base64(key)
    if kind == "standard-ed25519":
        return _PRIVATE_PREFIX + _base64(_ed25519_key(text))
    if kind == "sha256-hex":
        return _text_key(text).decode()
    raise _unknown_kind()


def public_key_of(secret: str) -> str:
    """Give the ``whpk_`` text of a ``whsk_`` secret.

    Raises: SigningError.
    """
    return _PUBLIC_PREFIX + _base64(_ed25519_key(secret)[32:])


def seal(secret: str) -> str:
    """Put a secret into its storage envelope; version 0 is the plain text."""
    return _ENVELOPE + secret


def unseal(stored: str) -> str:
    """Take a secret out of its storage envelope.

    Raises: SigningError when it was sealed by a version that this code does not know.
    """
    if not stored.startswith(_ENVELOPE):
        raise SigningError("a stored secret has an envelope of an unknown version")
    return stored[len(_ENVELOPE) :]


class Signer:
    """Signs one endpoint's requests; made once for each change of its secrets.

    ``secrets`` are (text, expiry in ms or None), newest first; the first one is the current and never expires.
    ``signature_header`` renames ``X-Webhook-Signature`` (and its ``-Previous``) for ``sha256-hex``.

    Raises: SigningError for a kind or secret that cannot sign.
    """

    __slots__ = ("_all", "_earliest_expiry_ms", "_is_hex", "_keys", "_previous_line", "_signature_line")

    def __init__(
        self,
        kind: str,
        secrets: Sequence[tuple[str, int | None]],
        signature_header: str | None = None,
    ) -> None:
        if not secrets or secrets[0][1] is not None:
            raise SigningError("an endpoint needs a current secret that does not expire")
        name = signature_header or DEFAULT_SIGNATURE_HEADER
        self._is_hex = kind == "sha256-hex"
        self._keys = [(_sign_with(kind, text), _NEVER_MS if end is None else end) for text, end in secrets]
        self._all = [sign for sign, _ in self._keys]
        self._earliest_expiry_ms = min(end for _, end in self._keys)
        self._signature_line = f"{name}: ".encode("ascii")
        self._previous_line = f"\r\n{name}-Previous: ".encode("ascii")

    def headers(self, event_id: str, timestamp_s: int, body: bytes, now_ms: int) -> bytes:
        """Give the complete header lines of one request, new key first; a secret counts until its expiry.

        ``timestamp_s`` is the attempt's wall time in Unix seconds.
        """
        if now_ms < self._earliest_expiry_ms:
            live = self._all
        else:
            live = [sign for sign, expires_at_ms in self._keys if now_ms < expires_at_ms]
        event = event_id.encode()
        if self._is_hex:
            line = self._signature_line + live[0](body)
            if len(live) > 1:
                line += self._previous_line + live[1](body)
            return b"X-Webhook-Id: %b\r\nX-Webhook-Timestamp: %d\r\n%b\r\n" % (event, timestamp_s, line)
        content = b"%b.%d.%b" % (event, timestamp_s, body)
        tokens = live[0](content) if len(live) == 1 else b" ".join([sign(content) for sign in live])
        return b"webhook-id: %b\r\nwebhook-timestamp: %d\r\nwebhook-signature: %b\r\n" % (event, timestamp_s, tokens)


def masked_headers(
    kind: str, event_id: str, timestamp_s: int, signature_header: str | None = None
) -> tuple[tuple[str, str], ...]:
    """Give the signing headers of a past attempt for showing: the signature itself is hidden."""
    if kind == "sha256-hex":
        name = signature_header or DEFAULT_SIGNATURE_HEADER
        return ("X-Webhook-Id", event_id), ("X-Webhook-Timestamp", str(timestamp_s)), (name, "sha256=***")
    token = "v1a,***" if kind == "standard-ed25519" else "v1,***"
    return ("webhook-id", event_id), ("webhook-timestamp", str(timestamp_s)), ("webhook-signature", token)


def _sign_with(kind: str, text: str) -> _Sign:
    """Decode a secret, once, into the function that signs with it."""
    if kind == "standard":
        key = _hmac_key(text)
        return lambda content: b"v1," + b2a_base64(hmac_digest(key, content, "sha256"), newline=False)
    if kind == "standard-ed25519":
        sign = _private_key(_ed25519_key(text)[:32]).sign
        return lambda content: b"v1a," + b2a_base64(sign(content), newline=False)
    if kind == "sha256-hex":
        text_key = _text_key(text)
        return lambda body: b"sha256=" + hexlify(hmac_digest(text_key, body, "sha256"))
    raise _unknown_kind()


def _hmac_key(text: str) -> bytes:
    """Decode a ``whsec_`` secret; how long one should be is for ``normalise_secret`` to say."""
    _refuse_stray(text)
    if text.startswith((_PRIVATE_PREFIX, _PUBLIC_PREFIX)):
        raise SigningError("this is a key of signature standard-ed25519; a standard secret begins with whsec_")
    key = _from_base64(text.removeprefix(_SECRET_PREFIX), _SECRET_PREFIX)
    if len(key) < _HMAC_KEY_BYTES_USABLE:
        raise SigningError(f"the secret has only {len(key)} bytes after base64: it is mistyped or cut")
    return key


def _ed25519_key(text: str) -> bytes:
    """Decode a ``whsk_`` secret into its seed and public key, 32 bytes each."""
    _refuse_stray(text)
    if text.startswith(_PUBLIC_PREFIX):
        raise SigningError("this is the public key; signing needs the private one, which begins with whsk_")
    if not text.startswith(_PRIVATE_PREFIX):
        raise SigningError("a secret of signature standard-ed25519 begins with whsk_")
    key = _from_base64(text.removeprefix(_PRIVATE_PREFIX), _PRIVATE_PREFIX)
    if len(key) != _ED25519_KEY_BYTES:
        raise SigningError(
            f"the key has {len(key)} bytes after base64; it must have {_ED25519_KEY_BYTES} (seed, then public key)"
        )
    if _private_key(key[:32]).public_key().public_bytes_raw() != key[32:]:
        raise SigningError("the two halves of the key do not belong together: it is mistyped or of another kind")
    return key


def _text_key(text: str) -> bytes:
    """Give the bytes of a ``sha256-hex`` secret, which is its own text."""
    if not text or text != text.strip():
        _refuse_stray(text)
    if _PRINTABLE.fullmatch(text) is None:
        raise SigningError("a secret of signature sha256-hex must be printable ASCII")
    if not _TEXT_KEY_CHARS_MIN <= len(text) <= _TEXT_KEY_CHARS_MAX:
        raise SigningError(
            f"the secret has {len(text)} characters; it must have {_TEXT_KEY_CHARS_MIN} to {_TEXT_KEY_CHARS_MAX}"
        )
    return text.encode()


def _refuse_stray(text: str) -> None:
    """Refuse what copying a secret leaves out or brings along."""
    if not text or text.isspace():
        raise SigningError("the secret is empty")
    if any(character.isspace() for character in text):
        raise SigningError("whitespace in the secret: a blank or line end was copied with it")
    if text.startswith(("v1,", "v1a,")):
        raise SigningError("the secret begins with a signature's version (v1,); it begins after that prefix")


def _from_base64(text: str, prefix: str) -> bytes:
    """Decode strictly: the one spelling of standard base64 with its padding."""
    if "-" in text or "_" in text:
        raise SigningError(f"not standard base64: the URL-safe alphabet (- and _), or the prefix {prefix} is misspelt")
    if _BASE64.fullmatch(text) is None:
        raise SigningError("not base64: only A-Z a-z 0-9 + / and = at the end may follow the prefix")
    try:
        decoded = a2b_base64(text)
    except Base64Error:
        raise SigningError("not base64: the padding (=) is missing, or the secret was cut") from None
    if _base64(decoded) != text:
        raise SigningError("not base64 as an encoder writes it: the last characters are mistyped or cut")
    return decoded


def _private_key(seed: bytes) -> Ed25519PrivateKey:
    try:
        # Only here: a server or receiver without ed25519 endpoints need not load (or have) it.
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415 - see above
    except ImportError:
        raise SigningError("signature standard-ed25519 needs: pip install 'ackpost[ed25519]'") from None
    return Ed25519PrivateKey.from_private_bytes(seed)


def _base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode()


def _unknown_kind() -> SigningError:
    return SigningError(f"the signature must be one of {', '.join(SIGNATURE_KINDS)}")
