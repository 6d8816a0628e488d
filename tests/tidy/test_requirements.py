"""The pinned requirements: hash-checked, complete, and free of places."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.tidy import tree

_FILES = ("build", "server", "dev")
_ENTRY = re.compile(
    r"^([a-z0-9][a-z0-9._-]*)==([^ ;\\]+)(?: ; [^\\]+)? \\(?:\n    --hash=sha256:[0-9a-f]{64}(?: \\)?)+$", re.MULTILINE
)


def _read(name: str) -> str:
    return (tree.ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")


def _pinned(name: str) -> dict[str, set[str]]:
    """Each package's versions: one, or one for each kind of platform."""
    found: dict[str, set[str]] = {}
    for package, version in _ENTRY.findall(_read(name)):
        found.setdefault(package, set()).add(version)
    return found


@pytest.mark.parametrize("name", _FILES)
def test_each_requirement_is_pinned_and_has_hashes(name: str) -> None:
    """Nothing but pinned versions with SHA-256 hashes stands in a requirements file."""
    assert _ENTRY.sub("", _read(name)).strip() == ""


@pytest.mark.parametrize("name", _FILES)
def test_requirements_name_no_places(name: str) -> None:
    """No address, no path and no index: where packages come from is the machine's business."""
    assert [line for line in _read(name).splitlines() if re.search(r"/|@|^-", line)] == []


def test_each_declared_dependency_is_pinned() -> None:
    """pyproject.toml's extras are in the files that the Makefile installs."""
    project = tomllib.loads((tree.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    names = {extra: {re.split(r"[<>=[]", one)[0].lower() for one in extras[extra]} for extra in extras}
    assert names["ed25519"] | names["server"] <= _pinned("server").keys()
    assert names["server"] | names["dev"] <= _pinned("dev").keys()


def test_users_and_developers_run_the_same_versions() -> None:
    """What the tests ran with is what the server's users install."""
    server, developers = _pinned("server"), _pinned("dev")
    assert {name: versions for name, versions in server.items() if developers.get(name) != versions} == {}
