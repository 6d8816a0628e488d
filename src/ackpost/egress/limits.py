"""The numbers of the HTTP client."""

from __future__ import annotations

from typing import Final

import msgspec

# Of one answer (contract §7), counted on the wire: with framing, and with interim answers as part of the header.
ANSWER_BYTES_MAX: Final = 64 * 1024
HEADER_BYTES_MAX: Final = 16 * 1024
HEADERS_PARSED_MAX: Final = 256
HEADERS_KEPT_MAX: Final = 64
BODY_BYTES_KEPT_MAX: Final = 16 * 1024
INTERIM_ANSWERS_MAX: Final = 16

# Of one name: how many of its addresses are tried, and how long one is alone before the next is tried beside it.
ADDRESSES_TRIED_MAX: Final = 6
NEXT_ADDRESS_AFTER_S: Final = 0.25


class Limits(msgspec.Struct, frozen=True):
    """What an operator may set: numbers of connections, and seconds."""

    connections_per_host_max: int = 100
    connections_max: int = 1_000
    idle_s: float = 30.0
    connect_s: float = 5.0
    tls_s: float = 5.0
