"""Pin the dependencies of ``pyproject.toml`` into hash-checked files for every supported Python and platform.

Run with ``make requirements``. The resolver is uv, installed into a temporary environment of its own: it resolves
once for all Pythons and platforms (with environment markers), which pip-compile cannot. No hosts or paths get into the
files.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = "uv>=0.9"
OPTIONS = [
    *("--universal", "--python-version", "3.11", "--generate-hashes", "--upgrade", "--quiet"),
    *("--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"),
]
FILES = {
    "requirements/build.txt": ["requirements/build.in"],
    "requirements/server.txt": [
        *("pyproject.toml", "--extra", "server"),
        *("--constraint", "requirements/constraints.in"),
    ],
    "requirements/dev.txt": [
        *("pyproject.toml", "--extra", "server", "--extra", "dev"),
        *("--constraint", "requirements/server.txt"),
    ],
}


def main() -> None:
    """Write all requirements files."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        binaries = Path(folder) / "bin"
        subprocess.run([binaries / "python", "-m", "pip", "install", "--quiet", UV], check=True)
        for name, inputs in FILES.items():
            subprocess.run([binaries / "uv", "pip", "compile", *OPTIONS, *inputs, "-o", name], check=True, cwd=ROOT)
            print(f"{name} written", file=sys.stderr)


if __name__ == "__main__":
    main()
