"""The ids of rows: random, as nobody counts over all the databases that events come from."""

from __future__ import annotations

import os
from collections.abc import Callable
from uuid import UUID

Random = Callable[[int], bytes]


def new_uid(random: Random = os.urandom) -> str:
    """Give a UUID (version 4); ``random`` gives so many random bytes."""
    return str(UUID(bytes=random(16), version=4))
