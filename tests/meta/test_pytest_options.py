"""`pytest -m neuron`: skips with a reason, fails when the hardware is required, runs on any engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from parity.pytest_plugin import missing_neuron

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(missing_neuron() is None, reason="a Neuron device is present")


def neuron_gates(*options: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "neuron",
        "tests/gates/test_neuron.py",
        "-q",
        "-p",
        "no:cacheprovider",
        *options,
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_without_a_device_the_gates_skip_with_a_reason():
    found = neuron_gates()
    assert found.returncode == 0 and "no Neuron device" in found.stdout and "passed" not in found.stdout


def test_a_skip_can_be_made_a_failure():
    found = neuron_gates("--neuron-required")
    assert found.returncode == 1 and "--neuron-required" in found.stdout


def test_with_a_device_the_gates_run(shallow_golden):
    found = neuron_gates(
        "--device", "numpy", "--golden", str(shallow_golden.folder), "-k", "local"
    )  # the other mode would show no more
    assert found.returncode == 0 and "passed" in found.stdout and "skipped" not in found.stdout, found.stdout
