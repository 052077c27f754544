"""The hardware gates, from any folder: skip with a reason, fail when the hardware is required, run on any engine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from parity.pytest_plugin import missing_neuron

pytestmark = pytest.mark.skipif(missing_neuron() is None, reason="a Neuron device is present")


pytest_plugins = ["pytester"]
GATES = ("--pyargs", "parity.hardware_gates", "-qra", "-p", "no:cacheprovider")


@pytest.fixture
def hardware_gates(pytester):
    """Run the gates in a folder that is no checkout, in this process: a fresh one imports torch for seconds."""
    return lambda *options: pytester.runpytest_inprocess(*GATES, *map(str, options))


def test_without_a_device_the_gates_skip_with_a_reason(tmp_path):
    """As a user starts them."""
    command = [sys.executable, "-m", "pytest", *GATES]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0 and "no Neuron device" in found.stdout and "passed" not in found.stdout


def test_a_skip_can_be_made_a_failure(hardware_gates):
    found = hardware_gates("--neuron-required")
    assert found.ret == 1 and "--neuron-required" in found.stdout.str()


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
    said = found.stdout.str()
    assert found.ret == code and words in said and "passed" in said, said
