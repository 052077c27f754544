"""The limits that a command is given are those of the process in which its device runs."""

from __future__ import annotations

import pytest

from parity.cli import cli
from parity.errors import UsageError
from parity.isolation import ProcessLimits
from tests.cli.test_empty_names import takers

ISOLATING = sorted(path for path, parameter in takers(cli) if parameter.name == "time_limit")


def test_these_commands_run_a_device_in_a_process_of_its_own():
    assert ISOLATING == [("diagnose",), ("diff",), ("engines",), ("gate",), ("reduce",), ("run",)]


@pytest.mark.parametrize("path", ISOLATING, ids=" ".join)
@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ((), ProcessLimits(3600)),
        (("--time-limit", 7, "--memory-limit", 0.5), ProcessLimits(7, 2**29)),
        (("--memory-limit", 3), ProcessLimits(3600, 3 * 2**30)),
    ],
)
def test_limits_reach_the_process_of_the_device(path, options, limits, parity, shallow_golden, monkeypatch):
    held = []

    def started(name, limits, opened):
        held.append((name, limits))
        raise UsageError("is not started here")

    monkeypatch.setattr("parity.isolation.device.DeviceProcess", started)
    found = parity(*path, "--isolate", "--golden", shallow_golden.folder, *options)
    assert held == [("numpy", limits)] and found.code == 2 and "is not started here" in found.err, found
