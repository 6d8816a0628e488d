"""The rules of the house that ruff, mypy and import-linter cannot check. No exceptions, so no list of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.tidy import tree

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70

# A class of one letter in each word, so that this file does not offend against itself.
_MACHINE_PATHS = re.compile(r"/wor[k]/|/roo[t]/|/hom[e]/[a-z]|/User[s]/[A-Za-z]")
_UNFINISHED = re.compile(r"\b(TOD[O]|FIXM[E]|XX[X])\b|NotImplemente[d]Error|pragm[a]: no cover")
_CODES = r"[A-Z]+[0-9]+(,\s*[A-Z]+[0-9]+)*"
_EXCUSE = re.compile(rf"#\s*(type:\s*ignor[e](\[[^\]]*\])?|noq[a](:\s*{_CODES})?)(?P<reason>.*)$")

_CLIENT_MODULES = {"http.client", "urllib.request", "urllib3", "requests", "httpx", "httpcore", "aiohttp", "websockets"}
_CLIENT_CALLS = {"create_connection", "open_connection", "sock_connect", "create_unix_connection", "connect_ex"}


def test_no_file_is_long() -> None:
    """A Python file has at most 500 lines."""
    sizes = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in tree.python_files()}
    assert [f"{tree.at(file, size)}" for file, size in sizes.items() if size > FILE_LINES_MAX] == []


def test_no_function_is_long() -> None:
    """A function has at most 70 lines, its docstring included."""
    long = [
        f"{tree.at(file, one.lineno)} {one.name}"
        for file in tree.python_files()
        for one in tree.functions(file)
        if (one.end_lineno or 0) - one.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_each_test_says_what_it_shows() -> None:
    """Each test has a sentence of behaviour."""
    mute = [
        f"{tree.at(file, one.lineno)} {one.name}"
        for file in tree.python_files(tree.TESTS)
        for one in tree.functions(file)
        if one.name.startswith("test_") and not ast.get_docstring(one)
    ]
    assert mute == []


def test_nothing_unfinished_and_no_machine_paths() -> None:
    """No file has notes of unfinished work or paths of somebody's machine."""
    found = [
        f"{tree.at(file, number)}: {line.strip()[:100]}"
        for file in tree.text_files()
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        if _MACHINE_PATHS.search(line) or _UNFINISHED.search(line)
    ]
    assert found == []


def test_a_silenced_checker_has_a_reason_on_its_line() -> None:
    """Whoever silences mypy or ruff says why, on the same line, for a named rule."""
    found = []
    for file in tree.python_files():
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            excuse = _EXCUSE.search(line)
            if excuse and (len(excuse["reason"].strip(" -:#")) < 8 or not (excuse[2] or excuse[3])):
                found.append(f"{tree.at(file, number)}: {line.strip()[:100]}")
    assert found == []


def test_tests_do_not_sleep() -> None:
    """A test waits for an event or moves the clock; real time is nobody's signal."""
    found = []
    for file in tree.python_files(tree.TESTS):
        for call in tree.calls(file):
            name = tree.dotted(call.func)
            constant = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else 0
            if name == "time.sleep" or (name == "asyncio.sleep" and constant != 0):
                found.append(tree.at(file, call.lineno))
    assert found == []


def test_tests_are_neither_skipped_nor_repeated() -> None:
    """A missing service fails a test; nothing is skipped but through ``needs``, expected to fail or run again."""
    banned = re.compile(r"pytest\.(skip|importorskip|xfail|mark\.(skip|skipif|xfail|flaky))\b")
    found = [
        tree.at(file, node.lineno)
        for file in tree.python_files(tree.TESTS)
        if file != tree.TESTS / "needs.py"
        for node in ast.walk(tree.parsed(file))
        if isinstance(node, ast.Attribute) and banned.match(tree.dotted(node))
    ]
    assert found == []


def _may_connect(file: Path) -> bool:
    """``cli.client`` calls only the server that its own user names, and follows nothing (docs/adr/0009)."""
    path = file.relative_to(tree.SRC).as_posix()
    return path.startswith(("egress/", "testing/", "cli/bench/")) or path == "cli/client.py"


def test_there_is_one_http_client() -> None:
    """Only egress (with the address guard), the commands' way to their server and tools for tests open connections."""
    found = []
    for file in tree.python_files(tree.SRC):
        if _may_connect(file):
            continue
        found += [
            f"{tree.at(file, line)} {name}"
            for name, line in tree.imports(file)
            if name in _CLIENT_MODULES or name.rpartition(".")[2] in _CLIENT_CALLS
        ]
        for node in ast.walk(tree.parsed(file)):
            if isinstance(node, ast.Attribute) and node.attr in _CLIENT_CALLS:
                found.append(f"{tree.at(file, node.lineno)} {node.attr}")
    assert found == []


def test_a_clock_and_chance_are_arguments() -> None:
    """Only the system's adapters are excused from the ban of clocks and chance in pyproject.toml.

    The commands' client is on that list for ``http.client``; the calls of clocks are looked for there too.
    """
    configuration = (tree.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    excused = [line for line in configuration.splitlines() if '"TID251"' in line.partition("#")[0]]
    assert [line.partition("=")[0].strip() for line in excused[:-1]] == [
        '"src/ackpost/wiring/system.py"',
        '"src/ackpost/outbox/identity.py"',
        '"src/ackpost/cli/client.py"',
    ]
    assert excused[-1].strip().startswith('"TID251",'), "the tests' own list comes last"
    found = [
        tree.at(file, call.lineno)
        for file in tree.python_files(tree.SRC)
        for call in tree.calls(file)
        if tree.dotted(call.func) in {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "os.urandom"}
        and file != tree.SRC / "wiring" / "system.py"
    ]
    assert found == []


def _public_names(file: Path) -> set[str]:
    names: set[str] = set()
    for node in tree.parsed(file).body:
        match node:
            case ast.ImportFrom(module=module, names=aliases) if module != "__future__":
                names |= {alias.asname or alias.name for alias in aliases}
            case ast.Import(names=aliases):
                names |= {alias.asname or alias.name.partition(".")[0] for alias in aliases}
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return {name for name in names if not name.startswith("_")}


def test_what_the_package_exports_is_documented() -> None:
    """Each public name of the package's root stands in a document, in code type."""
    text = "\n".join(file.read_text(encoding="utf-8") for file in tree.documents())
    exported = _public_names(tree.SRC / "__init__.py")
    assert {name for name in exported if not re.search(rf"`[^`\n]*\b{name}\b|import [^\n]*\b{name}\b", text)} == set()
