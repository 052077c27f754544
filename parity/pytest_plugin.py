"""The pytest side: `-m neuron` collects the hardware gates, `--device` runs them on any engine."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options that decide which device the gates run on."""
    group = parser.getgroup("parity", "gates of speculative decoding")
    group.addoption("--device", help="run the hardware gates on this device: neuron where there is one, numpy, xla, nkipy, or package.module:factory")
    group.addoption("--golden", type=Path, help="golden folder for the gates; dumped from the tiny pair by default")
    group.addoption("--precision", choices=["bfloat16", "float32"], default="bfloat16", help="the device's precision")
    group.addoption("--neuron-required", action="store_true", help="a missing Neuron device is a failure, not a skip")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "neuron: a gate for the hardware; runs on any engine with --device")


def pytest_report_header(config: pytest.Config) -> str:
    """Say what decides the run."""
    device = config.getoption("--device") or f"neuron ({missing_neuron() or 'present'})"
    return f"parity: device {device}, precision {config.getoption('--precision')}"


def missing_neuron() -> str | None:
    """Why there is no Neuron device here, or None where there is one."""
    return None if any(Path("/dev").glob("neuron[0-9]*")) else "no Neuron device: /dev/neuron* is absent"


@pytest.fixture(scope="session")
def device_name(pytestconfig: pytest.Config) -> str:
    """The device the gates judge; skips, or fails under --neuron-required, where there is none."""
    named = pytestconfig.getoption("--device")
    reason = None if named else missing_neuron()
    if reason and pytestconfig.getoption("--neuron-required"):
        pytest.fail(f"{reason} (--neuron-required)", pytrace=False)
    if reason:
        pytest.skip(f"{reason}; --device NAME runs this gate on an engine")
    return named or "neuron"
