"""Names and values of the headers that an endpoint's owner adds to its requests (contract §4, §7; RFC 9110 §5).

Values are sent as Latin-1. Line ends and other control characters are refused when a header is set, so that none is
first met while sending.
"""

from __future__ import annotations

import re
from typing import Final

NAME_CHARS_MAX: Final = 64
VALUE_CHARS_MAX: Final = 1024
MASK: Final = "***"

_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}")
# Visible ASCII and the printable part of Latin-1, blanks and tabs between them; the ends would not survive the way.
_VALUE: Final = re.compile(r"(?:[!-~\xa0-\xff](?:[ -~\t\xa0-\xff]*[!-~\xa0-\xff])?)?")

# Who frames the message and speaks for the connection is this sender alone (and one proxy must not differ from it).
_FRAMING: Final = frozenset({
    "host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "trailers", "keep-alive",
    "expect", "http2-settings",
})  # fmt: skip
_OURS: Final = frozenset({"content-type", "user-agent"})
_PROXY_PREFIX: Final = "proxy-"
_OUR_PREFIXES: Final = ("webhook-", "x-webhook-", "ackpost-")

_SENSITIVE: Final = re.compile(
    r"auth|cookie|token|secret|signature|passw|credential|session|(?:api|access|private)[-_]?key"
)


def name_fault(name: str) -> str | None:
    """Say what is wrong with the name of an own header; None when it may be used."""
    fault = _framing_fault(name)
    if fault is not None:
        return fault
    lower = name.lower()
    if lower in _OURS or lower.startswith(_OUR_PREFIXES):
        return "is a header that Ackpost sets itself"
    return None


def signature_name_fault(name: str) -> str | None:
    """Say what is wrong with the name of the header for ``sha256-hex`` signatures; None when it may be used."""
    fault = _framing_fault(name)
    if fault is not None:
        return fault
    lower = name.lower()
    if lower in _OURS or lower.startswith("ackpost-") or lower in {"x-webhook-id", "x-webhook-timestamp"}:
        return "is a header that Ackpost sets itself"
    return None


def value_fault(value: str) -> str | None:
    """Say what is wrong with a header's value; None when it may be sent."""
    if len(value) > VALUE_CHARS_MAX:
        return f"is longer than {VALUE_CHARS_MAX} characters"
    if _VALUE.fullmatch(value) is None:
        return "must be printable Latin-1 without line ends or blanks at its ends"
    return None


def is_sensitive(name: str) -> bool:
    """Say whether a header of this name usually carries a secret, in any spelling of case."""
    return _SENSITIVE.search(name.lower()) is not None


def masked(name: str, value: str) -> str:
    """Give the value for showing: hidden when the name says that it is secret."""
    return MASK if is_sensitive(name) else value


def _framing_fault(name: str) -> str | None:
    if len(name) > NAME_CHARS_MAX:
        return f"is longer than {NAME_CHARS_MAX} characters"
    if _TOKEN.fullmatch(name) is None:
        return "is no header name: letters, digits and any of !#$%&'*+-.^_`|~"
    lower = name.lower()
    if lower in _FRAMING or lower.startswith(_PROXY_PREFIX):
        return "belongs to the connection and cannot be set"
    return None
