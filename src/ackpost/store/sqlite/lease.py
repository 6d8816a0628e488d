"""One server a database: a lock of the operating system and a lease row that names the owner.

The lock tells at once whether an owner on this machine lives, so that a killed server does not keep the next one
waiting. The lease in ``meta`` stands in for it where a lock file was lost or copied with the database.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from ackpost.core.times import rfc3339_ms
from ackpost.errors import StoreError, StoreLocked
from ackpost.ports.operations import Done, RenewLease
from ackpost.store.sqlite.ledger import Ledger

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class FileLock:
    """The lock on ``<database>.lock``; its text says who holds it, for those who are refused."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._path = f"{database}.lock"
        self._descriptor: int | None = None

    def take(self, node: str, now_ms: int) -> None:
        """Become the one owner on this machine.

        Raises: StoreLocked naming the owner; StoreError when the file cannot be made.
        """
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            text = f"The database {self._database} cannot be locked: {error.strerror}: {self._path}."
            raise StoreError(text) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 400).decode(errors="replace").strip()
            os.close(descriptor)
            raise StoreLocked(_in_use(self._database, owner or "its owner is starting")) from None
        except OSError as error:
            os.close(descriptor)
            raise StoreError(f"The database {self._database} cannot be locked: {error.strerror}.") from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, _owner(node, now_ms).encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Let others in; the file stays, because removing it would race with one who just opened it."""
        if self._descriptor is not None:
            with suppress(OSError):  # where nothing can be written the name stays: it is for people only
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def take_lease(ledger: Ledger, *, database: str, node: str, host: str, now_ms: int, lease_ms: int) -> None:
    """Write this node as owner, inside a transaction; its incarnation is one more than the last.

    An owner of this machine is dead, else it would hold the lock; a node of the same name has restarted.
    Raises: StoreLocked when the lease of another node on another machine has not run out.
    """
    row = ledger.one("SELECT salt, position_bound, incarnation, node, host, owned_since_ms, lease_expires_ms FROM meta")
    assert row is not None
    salt, position_bound, incarnation, owner, owner_host, since_ms, expires_ms = row
    if owner not in {None, node} and owner_host != host and expires_ms > now_ms:
        raise StoreLocked(_in_use(database, f"{_owner(owner, since_ms)} (on another machine)"))
    ledger.execute(
        "UPDATE meta SET incarnation = ?, node = ?, host = ?, owned_since_ms = ?, lease_expires_ms = ?",
        (incarnation + 1, node, host, now_ms, now_ms + lease_ms),
    )
    ledger.adopt(node=node, incarnation=incarnation + 1, salt=salt, position_bound=position_bound)


def renew_lease(ledger: Ledger, operation: RenewLease) -> Done:
    """Move the end of the lease.

    Raises: StoreLocked when somebody else has become owner.
    """
    if operation.incarnation != ledger.incarnation or operation.node != ledger.node:
        raise StoreLocked("Another node owns the database now.")
    ledger.execute("UPDATE meta SET lease_expires_ms = ?", (operation.now_ms + operation.lease_ms,))
    return Done()


def check_owner(ledger: Ledger) -> None:
    """Make sure, inside a transaction, that nobody else has become owner meanwhile (rule E3).

    Raises: StoreLocked.
    """
    row = ledger.one("SELECT incarnation, node, owned_since_ms FROM meta")
    if row is None or row[0] != ledger.incarnation:
        owner = "by nobody" if row is None or row[1] is None else _owner(row[1], row[2])
        raise StoreLocked(f"This server does not own the database any more; it is owned {owner}.")


def release_lease(ledger: Ledger) -> None:
    """Say that nobody owns the database, and which position was the last."""
    ledger.execute(
        "UPDATE meta SET node = NULL, host = NULL, lease_expires_ms = 0, position_bound = ? WHERE incarnation = ?",
        (ledger.last_position, ledger.incarnation),
    )


def machine() -> str:
    """Name the running system: containers of one kernel share it, and locks reach as far as it does."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return os.uname().nodename


def _in_use(database: str, owner: str) -> str:
    return f"The database {database} is in use: {owner}. Stop that one, or take another file with --database-url."


def _owner(node: str, since_ms: int) -> str:
    return f"by node {node} since {rfc3339_ms(since_ms)}"
