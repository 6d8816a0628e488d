"""``ackpost bench``: real processes, real HTTP, durable commits (contract §10)."""
