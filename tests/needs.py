"""What tests need of the machine: in CI a missing program is a failure, elsewhere a test says why it did not run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

LOOP_CONTROL = Path("/dev/loop-control")
_CAP_SYS_ADMIN = 1 << 21


def _need(found: bool, what: str, *, in_ci: bool = True) -> None:
    if found:
        return
    if os.environ.get("CI") and in_ci:
        pytest.fail(f"CI must have {what}")
    pytest.skip(f"did not run: needs {what}")


def need_program(name: str, package: str) -> str:
    """Give the path of a program."""
    path = shutil.which(name)
    _need(path is not None, f"the program {name} (package {package})")
    assert path is not None
    return path


def need_root() -> None:
    """Require the right to mount file systems."""
    _need(os.geteuid() == 0, "root, who may mount file systems", in_ci=False)


def _may_mount() -> bool:
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    effective = next((line.split()[1] for line in status if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) & _CAP_SYS_ADMIN)


def need_loop_devices() -> None:
    """Require root and loop devices: no setup of a CI machine brings them, so there too their lack is only told.

    Where they are, a mount that is not allowed is CI's failure.
    """
    need_root()
    _need(LOOP_CONTROL.exists(), "loop devices (/dev/loop-control)", in_ci=False)
    _need(_may_mount(), "the right to mount file systems (CAP_SYS_ADMIN)")
    need_program("mkfs.ext4", "e2fsprogs")
