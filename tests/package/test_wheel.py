"""What is built and what a user's project sees of it: `make package` builds, and runs these with $PARITY_DIST.

The environment is empty but for the wheel; its dependencies are those of this one, each linked into a folder that a
.pth names, this project and its entry points left out. The scratch project has packages of its own by the names of this
repository's folders: all but `device` raise when they are imported.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MIB = 2**20
MOST = 15 * MIB
"""Of a wheel: the tiny target and the drafters of five families are 13 MiB of it, and nothing may join it unnoticed."""

LINKED = ("references", "device", "fixtures", "reports")
TESTS_ONLY = tuple(f"parity/fixtures/{name}/" for name in ("vllm", "eagle", "imports", "nights"))

DEVICE = """
from parity.device import load as shipped


def load(target, drafter, k, precision="bfloat16"):
    return shipped(target, drafter, k, precision)
"""

CHECK = """
import os

import numpy as np
import pytest

import device.mine
import parity

EXPECTED = np.random.default_rng(0).standard_normal((4, 8))


def test_a_kernel():
    parity.assert_parity(EXPECTED * (1 + 1e-15), EXPECTED)
    with pytest.raises(AssertionError, match="first bad element"):
        parity.assert_parity(EXPECTED * 1.1, EXPECTED)


def test_the_plugin(device_name):
    assert device_name == "device.mine:load" and device.mine.__file__.startswith(os.getcwd())
"""


def alone() -> dict[str, str]:
    """This environment's variables without those that lead to this checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PARITY", "PYTEST"))}


@pytest.fixture(scope="session")
def dist() -> Path:
    if not (named := os.environ.get("PARITY_DIST")):
        pytest.skip("PARITY_DIST names no built distribution: `make package`")
    return Path(named).resolve()


@pytest.fixture(scope="session")
def wheel(dist) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def python(wheel, tmp_path_factory) -> Path:
    """The interpreter of an environment that holds the wheel and, linked, what requirements.lock installed here."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
    made = folder / "env/bin/python"
    install = [made, "-m", "pip", "install", "-qq", "--no-deps", "--no-index", "--disable-pip-version-check", wheel]
    subprocess.run(install, check=True, env=alone())
    (folder / "dependencies").mkdir()
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(place).iterdir():
            if not entry.name.startswith(("parity", "__editable__", "pip", "setuptools")) and entry.suffix != ".pth":
                (folder / "dependencies" / entry.name).symlink_to(entry)
    (site,) = (folder / "env/lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(f"{folder / 'dependencies'}\n")
    return made


@pytest.fixture(scope="session")
def project(tmp_path_factory) -> Path:
    """A user's project: packages of these names, a device of its own, a pytest run of its own."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("references", "fixtures", "reports", "tests", "device"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"raise RuntimeError('the project\\'s own {name} was imported')\n")
    (folder / "device" / "__init__.py").write_text("")
    (folder / "device" / "mine.py").write_text(DEVICE)
    (folder / "checks").mkdir()
    (folder / "checks" / "test_mine.py").write_text(CHECK)
    return folder


@pytest.fixture(scope="session")
def run(python, project):
    """A command of the environment in the project, with nothing of this checkout in reach; its ended process."""

    def ended(*words: object) -> subprocess.CompletedProcess[str]:
        command = [python.parent / str(words[0]), *map(str, words[1:])]
        return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, env=alone())

    return ended


@pytest.fixture(scope="session")
def golden(run, project) -> subprocess.CompletedProcess[str]:
    """A golden of one short prompt, the newest in the project."""
    (project / "prompt.jsonl").write_text(json.dumps({"id": "one", "messages": [{"role": "user", "content": "Why?"}]}))
    return run("parity", "dump-golden", "--prompts", "prompt.jsonl", "-k", 2, "--max-new-tokens", 4)


def test_the_wheel_holds_one_package_with_every_file_of_the_repository_and_nothing_else(wheel):
    listed = subprocess.run(
        ["git", "ls-files", "parity", *LINKED], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    kept = {name if name.startswith("parity/") else f"parity/{name}" for name in listed}
    kept -= {f"parity/{name}" for name in LINKED}
    wanted = {name for name in kept if not name.startswith(TESTS_ONLY)}
    names = set(zipfile.ZipFile(wheel).namelist())
    about = {name for name in names if ".dist-info/" in name}
    assert names - about == wanted
    assert {Path(name).name for name in about} >= {"LICENSE", "METADATA", "entry_points.txt"}
    assert wheel.stat().st_size < MOST


def test_the_wheel_of_the_sdist_is_the_wheel_of_the_checkout(dist, wheel, tmp_path):
    """`python -m build` makes its wheel of the sdist; this one is made of the checkout."""
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert not [member.name for member in archive if member.issym() or member.islnk()]
    for left in (ROOT / "build/lib", *ROOT.glob("*.egg-info")):
        shutil.rmtree(left, ignore_errors=True)  # of an older checkout: its files would join
    tools = ROOT / "build/package/tools/bin/python"
    build = [tools, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    (again,) = tmp_path.glob("*.whl")
    contents = [
        {member.filename: member.CRC for member in zipfile.ZipFile(one).infolist() if "RECORD" not in member.filename}
        for one in (wheel, again)
    ]
    assert contents[0] == contents[1]


def test_the_demo(run):
    ended = run("parity", "demo", "-k", 2, "--max-new-tokens", 2)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "chained verdict: pass" in ended.stdout


def test_a_golden_is_made(golden):
    assert golden.returncode == 0, golden.stdout + golden.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("parity", "diff"),
        ("python", "-m", "parity", "diff", "--mode", "local"),
        ("parity", "diff", "--device", "device.mine:load"),
        ("parity", "diff", "--device", "device.mine:load", "--isolate"),
        ("parity", "gate", "--only", "provenance", "--device", "device.mine:load"),
        ("parity", "policy"),
        ("parity", "--version"),
        (
            "python",
            "-c",
            "import parity; parity.compare_tensors; parity.dump_golden; parity.gate_device; parity.write_report",
        ),
    ],
    ids=" ".join,
)
def test_a_command_passes_beside_packages_of_these_names(words, run, golden):
    ended = run(*words)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_planted_fault_is_found(run, golden):
    ended = run("parity", "diff", "--device", "parity.device.faults:tap_off_by_one")
    assert ended.returncode == 1 and "first divergent: drafter.taps" in ended.stdout, ended.stdout + ended.stderr


def test_a_pytest_run_of_the_project(run):
    arguments = ("-q", "-p", "no:cacheprovider", "checks", "--device", "device.mine:load")
    ended = run("python", "-m", "pytest", *arguments)
    assert ended.returncode == 0 and "2 passed" in ended.stdout, ended.stdout + ended.stderr


def test_a_top_level_import_would_fail_here(python, run, golden):
    """The check sees red: one name without `parity.` before it, and the project's own package is met."""
    (file,) = (python.parents[1] / "lib").glob("python*/site-packages/parity/oracles.py")
    whole = file.read_text()
    assert '"parity.references.dump"' in whole
    file.write_text(whole.replace('"parity.references.dump"', '"references.dump"'))
    try:
        ended = run("python", "-m", "parity", "dump-golden", "--max-new-tokens", 4)
    finally:
        file.write_text(whole)
    assert ended.returncode == 2 and "the project's own references was imported" in ended.stderr, ended.stderr
