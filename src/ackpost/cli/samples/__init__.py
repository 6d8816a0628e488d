"""Events of two real systems as they would be published: a messaging platform's and a pet store's.

The data's bytes are published as they stand in the files: indentation, escapes, number forms, a duplicate name.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

import msgspec

NAMES: Final = (
    "message_sent", "message_delivered", "message_failed", "message_received", "account_balance_low",
    "pet_adopted", "pet_status_changed", "order_created", "order_completed", "payment_succeeded", "payment_failed",
)  # fmt: skip


class Sample(msgspec.Struct, frozen=True):
    """An event; ``data`` are its bytes."""

    type: str
    data: msgspec.Raw
    key: str | None = None


def load(name: str) -> Sample:
    """Read one."""
    return msgspec.json.decode((files(__package__) / f"{name}.json").read_bytes(), type=Sample)
