"""The hardware gates, from any folder: skip with a reason, fail when the hardware is required, run on any engine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from parity.pytest_plugin import missing_neuron

pytestmark = pytest.mark.skipif(missing_neuron() is None, reason="a Neuron device is present")


@pytest.fixture
def hardware_gates(tmp_path):
    """Run the gates in a folder that is no checkout."""

    def run(*options: object) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "--pyargs",
            "parity.hardware_gates",
            "-qra",
            "-p",
            "no:cacheprovider",
        ]
        command += map(str, options)
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


def test_without_a_device_the_gates_skip_with_a_reason(hardware_gates):
    found = hardware_gates()
    assert found.returncode == 0 and "no Neuron device" in found.stdout and "passed" not in found.stdout


def test_a_skip_can_be_made_a_failure(hardware_gates):
    found = hardware_gates("--neuron-required")
    assert found.returncode == 1 and "--neuron-required" in found.stdout


@pytest.mark.parametrize(
    ("device", "code", "words"),
    [
        ("numpy", 0, "not shown by the device; shows first in target.layers.0.out"),
        ("parity.device.faults:attn_window_one_narrow", 1, "{'target.layers.0.out': 'fail'"),
    ],
)
def test_with_a_device_the_gates_run_and_judge_what_it_hides_through_what_it_shows(
    device, code, words, hardware_gates, shallow_golden
):
    named = "--device", f"{device},show=layer-outputs", "--golden", shallow_golden.folder
    found = hardware_gates(*named, "-k", "local")  # the other mode would show no more
    assert found.returncode == code and words in found.stdout and "passed" in found.stdout, found.stdout
