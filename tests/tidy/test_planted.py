"""Planted faults fit the source, and every promise and every test named for it has one. ``make ablation`` runs them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.planted.plants import Edit, Plant, planted, plants
from tests.tidy import tree

PLANTS = plants()
_ROW = re.compile(r"^\| ([IP][0-9]+) \|(.+)\|([^|]+)\|$", re.MULTILINE)


_FAULT = re.compile(r"^\| (?![IP][0-9]+ ).*\|([^|]+)\|$", re.MULTILINE)


def _page() -> str:
    return (tree.DOCS / "guarantees.md").read_text(encoding="utf-8")


def _tests_in(cell: str) -> set[str]:
    return set(re.findall(r"`(tests/[^`]+)`", cell))


def _promises() -> dict[str, set[str]]:
    """The files of tests that docs/guarantees.md names for each promise."""
    return {promise: _tests_in(cell) for promise, _, cell in _ROW.findall(_page())}


@pytest.mark.parametrize("name", PLANTS)
def test_a_plant_fits_the_source(name: str) -> None:
    """The text that it changes stands exactly once where it says, the changed file compiles, and its tests exist."""
    plant = PLANTS[name]
    for file, (_, faulty) in planted(plant, tree.ROOT).items():
        compile(faulty, file, "exec")
    for test in plant.tests:
        name_of_file, _, function = test.partition("::")
        text = (tree.ROOT / name_of_file).read_text(encoding="utf-8")
        assert not function or f"def {function.partition('[')[0]}(" in text, test


def test_every_promise_and_every_test_of_it_has_a_planted_fault() -> None:
    """What docs/guarantees.md names as shown by a test was seen failing with a fault that breaks that promise."""
    noticed: dict[str, set[str]] = {}
    for plant in PLANTS.values():
        noticed.setdefault(plant.promise, set()).update(test.partition("::")[0] for test in plant.tests)
    promises = _promises()
    assert sorted(noticed) == sorted(promises)
    assert {promise: tests - noticed[promise] for promise, tests in promises.items() if tests - noticed[promise]} == {}


def test_every_test_of_the_table_of_faults_has_a_planted_fault() -> None:
    """What was done to real processes and disks would have shown a fault: each of those tests was seen failing."""
    named = {test for cell in _FAULT.findall(_page()) for test in _tests_in(cell)}
    seen = {test.partition("::")[0] for plant in PLANTS.values() for test in plant.tests}
    assert len(named) > 8
    assert named - seen == set()


@pytest.mark.timeout(180)
def test_a_fault_is_noticed_and_a_harmless_change_is_not() -> None:
    """The machinery itself: the first ends well, the second, planted in the machinery's own copy, does not."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.planted", "a_range_is_missing"],
        cwd=tree.ROOT, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout.splitlines()[-1][:18]) == (0, "1 passed, 0 failed"), ended.stdout


def test_a_plant_that_no_test_notices_fails(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A change that breaks nothing is told as not noticed; one that does not fit the source too."""
    from tests.planted.__main__ import Copy, judge

    copy = Copy(tmp_path_factory.mktemp("copy"))
    tests = ["tests/core/test_circuit.py::test_limits_by_state"]
    text = '"""The circuit of an endpoint (contract §5)'
    harmless = Plant("I6", "none", tests, [_edit(text, '"""A circuit (contract §5)')])
    assert judge(copy, harmless).wrong == f"{tests[0]} stays green"
    rotten = Plant("I6", "none", tests, [_edit("no such text", "")])
    assert (judge(copy, rotten).wrong or "").startswith("the plant does not fit")
    another = f"{tests[0]} fails for another reason"
    unimportable = [_edit("SUSPICION_FAILURES: Final = 3", "SUSPICION_FAILURES: Final = nothing")]
    assert (judge(copy, Plant("I6", "none", tests, unimportable)).wrong or "").startswith(another)
    unknown_name = [_edit('    if circuit.state == "open":\n        return 0\n', "    return nothing\n")]
    assert (judge(copy, Plant("I6", "none", tests, unknown_name)).wrong or "").startswith(another)


def _edit(find: str, replace: str) -> Edit:
    return Edit("src/ackpost/core/circuit.py", find, replace)
