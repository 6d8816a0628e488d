"""``ackpost relay``: moves events from an application's outbox to a server.

A row is published under its own uid and deleted afterwards. Whatever dies in between, the next look finds the row again
and the server knows the uid: nothing is lost, nothing published twice. No place in the table is remembered: each look
takes the oldest rows that are visible, so a row whose transaction commits late is only found later. And as each look
begins at the oldest, rows of a key go in their order even if several relays run.
"""
