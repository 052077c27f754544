"""The import rules of the house, as declared in pyproject.toml, and that they can fail."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("parity", "tests")


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """import-linter over the house in this folder."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def house(tmp_path_factory) -> Path:
    """A copy, of which the linter keeps what it read."""
    folder = tmp_path_factory.mktemp("house")
    for room in ROOMS:  # links below parity/ become folders: the linter follows none
        shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("*.safetensors", "__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.fixture
def copy(house) -> Iterator[Path]:
    """The copy; what a test planted in it is taken out again."""
    files = {house / file for file, _ in (*FORBIDDEN, CIRCLE)}
    clean = {file: file.read_bytes() for file in files}
    yield house
    for file, source in clean.items():
        file.write_bytes(source)


def test_the_house_keeps_its_import_rules(copy):
    found = lint(copy)
    assert found.returncode == 0, found.stdout + found.stderr


FORBIDDEN = [
    ("parity/device/rows.py", "import parity.references.rope"),
    ("parity/references/rope.py", "import parity.device.kernels.rope"),
    ("parity/references/gpt_oss.py", "import transformers"),
    ("parity/trace.py", "import torch"),
    ("parity/drive.py", "import parity.device"),
    ("parity/api/dumps.py", "from parity.cli.options import write_json"),
    ("parity/device/rows.py", "from parity.golden import store"),
    ("parity/reports/terminal.py", "import tests.meta.test_import_rules"),
    ("parity/history/schema.py", "import parity.reports.terminal"),
]
CIRCLE = ("parity/nightly/run.py", "import parity.history.schema")
"""What it would break is a circle, of which the linter names an edge of its choice: alone in its run."""


def plant(folder: Path, file: str, line: str) -> None:
    with (folder / file).open("a") as source:
        source.write(f"\n{line}\n")


def test_every_forbidden_import_is_found(copy):
    for file, line in FORBIDDEN:
        plant(copy, file, line)
    found = lint(copy)
    assert found.returncode == 1, found.stdout + found.stderr
    for file, line in FORBIDDEN:
        importer, imported = file.removesuffix(".py").replace("/", "."), line.split()[1]
        assert re.search(rf"{importer} -> {imported}(\.\w+)? \(", found.stdout), found.stdout


def test_a_circle_of_imports_is_found(copy):
    plant(copy, *CIRCLE)
    found = lint(copy)
    assert found.returncode == 1, found.stdout + found.stderr
