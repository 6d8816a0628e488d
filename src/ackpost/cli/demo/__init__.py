"""``ackpost demo``: the promises, shown on a real server with real requests, and checked."""
