"""What a server that shares its database keeps on its own machine: who it is, and what it was sending (rule E5)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ackpost.errors import StoreError, StoreLocked
from ackpost.ports.clock import Entropy


class Home:
    """Files of one node in a folder, locked while the process lives: so a second one of that name is not the same.

    Raises: StoreLocked when another process of this machine uses them; StoreError when they cannot be made.
    """

    def __init__(self, folder: Path, node: str, entropy: Entropy) -> None:
        self.slots_path = folder / f"{node}.inflight"
        path = folder / f"{node}.id"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.id = os.read(self._handle, 64).decode("ascii", "replace").strip()
            if not self.id:
                self.id = entropy.token(16).hex()
                os.write(self._handle, f"{self.id}\n".encode())
                os.fsync(self._handle)
        except BlockingIOError as error:
            raise StoreLocked(f"Another server here is called {node}: give this one its own node_name.") from error
        except OSError as error:
            raise StoreError(f"The state folder {folder} cannot be used: {error.strerror}.") from error

    def close(self) -> None:
        """Let the files go."""
        os.close(self._handle)
