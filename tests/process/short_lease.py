"""``python -m tests.process.short_lease serve …``: Ackpost with a lease of ``LEASE_MS`` that a test can outwait."""

from __future__ import annotations

import os

from ackpost.cli import main
from ackpost.wiring import node

if __name__ == "__main__":
    node.LEASE_MS = int(os.environ["LEASE_MS"])
    main()
