"""Documents agree with the code and with each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from ackpost import config
from tests.tidy import tree

_LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)#\s]+)(?:#[^)]*)?\)")


def _links(file: Path) -> list[Path]:
    without_code = re.sub(r"^```.*?^```$", "", file.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [(file.parent / target).resolve() for target in _LINK.findall(without_code)]


def test_links_between_documents_lead_somewhere() -> None:
    """Each relative link names a file of the project."""
    broken = [f"{file.name} -> {target}" for file in tree.documents() for target in _links(file) if not target.exists()]
    assert broken == []


def test_each_document_can_be_reached() -> None:
    """From README or ARCHITECTURE links lead to every page below docs, the decisions (adr) included."""
    reached: set[Path] = set()
    waiting = [tree.ROOT / "README.md", tree.ROOT / "ARCHITECTURE.md"]
    while waiting:
        file = waiting.pop()
        if file not in reached:
            reached.add(file)
            waiting += [target for target in _links(file) if target.suffix == ".md" and target.exists()]
    assert [page.name for page in sorted(tree.DOCS.rglob("*.md")) if page not in reached] == []


def test_the_settings_table_is_the_codes() -> None:
    """docs/production.md lists each setting as ``config.settings_table`` writes it."""
    page = (tree.DOCS / "production.md").read_text(encoding="utf-8")
    assert config.settings_table() in page


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~;\[ ]", one)[0].lower() for one in requirements}


def test_each_dependency_has_its_reason() -> None:
    """docs/dependencies.md has a row for each dependency of pyproject.toml, and no other."""
    project = tomllib.loads((tree.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    declared = _names(project["project"]["dependencies"]) | _names(project["build-system"]["requires"])
    for extra in project["project"]["optional-dependencies"].values():
        declared |= _names(extra)
    page = (tree.DOCS / "dependencies.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \|[^|]+\| (.+) \|$", page, flags=re.MULTILINE)
    assert {name for name, _ in rows} == declared
    assert [name for name, reason in rows if not reason.endswith(".")] == []


def test_the_servers_dependencies_are_used() -> None:
    """Each dependency of the extra ``server`` is imported somewhere in the package, or is what uvicorn runs on."""
    project = tomllib.loads((tree.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    imported = {name.partition(".")[0] for file in tree.python_files(tree.SRC) for name, _ in tree.imports(file)}
    declared = {name.replace("-", "_") for name in _names(project["project"]["optional-dependencies"]["server"])}
    assert declared - imported - {"uvloop"} == set()


def test_the_version_has_one_source() -> None:
    """pyproject.toml takes the version from the package, and the changelog knows it."""
    project = tomllib.loads((tree.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    changelog = (tree.ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## \[(Unreleased|[0-9.]+)\]", changelog, flags=re.MULTILINE)
