"""Planted faults: what each changes in the source, which promise it breaks, which tests must notice."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

import msgspec

FOLDER: Final = Path(__file__).parent
ROOT: Final = FOLDER.parents[1]


class Edit(msgspec.Struct, forbid_unknown_fields=True):
    """A text that stands exactly once in a file, and what stands there instead."""

    file: str
    find: str
    replace: str


class Plant(msgspec.Struct, forbid_unknown_fields=True):
    """One fault. ``promise`` is its id in docs/guarantees.md; each of ``tests`` (node ids of pytest) must notice it."""

    promise: str
    fault: str
    tests: list[str]
    edit: list[Edit]


def plants() -> dict[str, Plant]:
    """Read all, by name."""
    return {
        file.stem: msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), Plant)
        for file in sorted(FOLDER.glob("*.toml"))
    }


def planted(plant: Plant, root: Path) -> dict[Path, tuple[str, str]]:
    """Give the changed files below ``root``: their text as it is, and with the fault.

    Raises: ValueError when a text is not there exactly once: the plant no longer fits the source.
    """
    texts: dict[Path, tuple[str, str]] = {}
    for edit in plant.edit:
        file = root / edit.file
        sound, text = texts.get(file) or (file.read_text(encoding="utf-8"),) * 2
        if text.count(edit.find) != 1:
            raise ValueError(f"{edit.file} has {text.count(edit.find)} times: {edit.find!r}")
        texts[file] = sound, text.replace(edit.find, edit.replace)
    return texts
