"""``Idempotency-Key``: what a POST's repetition is recognised by (contract §2). The store keeps the answers."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from ackpost.errors import FieldError, InvalidInput
from ackpost.ports.operations import Idempotency

HEADER: Final = "Idempotency-Key"
OPERATORS_OWN: Final = 0
"""Stands for the tenant in calls that belong to none."""

_KEY: Final = re.compile(rb"[\x20-\x7e]{1,256}")


def idempotency_of(
    header: bytes | None, *, tenant: int | None, method: str, path: str, body: bytes, now_ms: int
) -> Idempotency | None:
    """Give what the store needs to recognise a repetition; None without the header.

    Raises: InvalidInput when the key is no printable ASCII of 1 to 256 characters.
    """
    if header is None:
        return None
    if _KEY.fullmatch(header) is None:
        message = "must be 1 to 256 printable ASCII characters"
        raise InvalidInput(f"The header {HEADER} {message}.", errors=[FieldError(("header", HEADER), message)])
    digest = hashlib.sha256(b"%s %s\n" % (method.encode(), path.encode("utf-8", "surrogateescape")))
    digest.update(body)
    return Idempotency(OPERATORS_OWN if tenant is None else tenant, header.decode("ascii"), digest.digest(), now_ms)
