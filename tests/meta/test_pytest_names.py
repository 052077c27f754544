"""The plugin in somebody else's project: short options are ours only where nobody else claims them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLAIM = """
def pytest_addoption(parser):
    parser.addoption("--device", default="theirs")
    parser.addoption("--golden", action="store_true")
"""
TEST = """
def test_options(pytestconfig):
    names = ("device", "parity_device", "parity_golden", "parity_precision")
    print("TOLD", *(pytestconfig.getoption(name, None) for name in names))
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project of its own; `project(*arguments)` runs its tests with the plugin loaded."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-config\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_options.py").write_text(TEST)
    (tmp_path / "golden").mkdir()

    def run(*arguments: str, plugins: tuple[str, ...] = ("parity.pytest_plugin",)) -> subprocess.CompletedProcess[str]:
        named = [word for plugin in plugins for word in ("-p", plugin)]
        command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *named, *arguments]
        alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, env=os.environ | alone
        )

    return run


def told(found: subprocess.CompletedProcess[str]) -> str:
    assert found.returncode == 0, found.stdout + found.stderr
    return next(line[line.index("TOLD") :] for line in found.stdout.splitlines() if "TOLD" in line)


def test_without_another_claim_both_spellings_are_ours(project):
    short = project("--device", "numpy", "--golden=golden", "--precision", "float32")
    assert told(short) == told(
        project("--parity-device=numpy", "--parity-golden", "golden", "--parity-precision", "float32")
    )
    assert told(short) == "TOLD None numpy golden float32"


@pytest.mark.parametrize("where", ["conftest.py", "tests/conftest.py", "claim.py first", "claim.py last"])
def test_a_project_with_options_of_its_own_keeps_them(where, project, tmp_path):
    file, _, order = where.partition(" ")
    (tmp_path / file).write_text(CLAIM)
    plugins = {"first": ("claim", "parity.pytest_plugin"), "last": ("parity.pytest_plugin", "claim")}
    arguments = ("--device", "gpu", "--golden", "--parity-device", "numpy", "--precision", "float32", "tests")
    assert (
        told(project(*arguments, plugins=plugins.get(order, ("parity.pytest_plugin",))))
        == "TOLD gpu numpy None float32"
    )


def test_a_conftest_that_is_met_late_still_claims_its_name(project, tmp_path):
    (tmp_path / "tests" / "deep").mkdir()
    (tmp_path / "tests" / "deep" / "conftest.py").write_text(CLAIM)
    (tmp_path / "tests" / "deep" / "test_deep.py").write_text("def test_deep(): pass\n")
    assert told(project("--device", "numpy")) == "TOLD theirs numpy None bfloat16"


@pytest.mark.parametrize("word", ["--device=", "--parity-golden="])
def test_an_empty_name_is_refused(word, project):
    found = project(word)
    assert found.returncode == 4 and "invalid" in found.stderr
