"""The pytest side: `-m neuron` collects the hardware gates, `--parity-device` runs them on any engine.

`--device`, `--golden`, `--precision` and `--neuron-required` say the same wherever nobody else claims them. They are
never registered: a plugin or conftest.py that adds an option of that name, before or after this one, has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path

import pytest

SHORT = ("--device", "--golden", "--precision", "--neuron-required")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options that decide which device the gates run on."""
    group = parser.getgroup(
        "parity", "gates of speculative decoding; without 'parity-' where nobody else has such an option"
    )
    group.addoption(
        "--parity-device",
        type=_named,
        help="run the hardware gates on this device: neuron where there is one, numpy, xla, nkipy, "
        "or package.module:factory",
    )
    group.addoption(
        "--parity-golden",
        type=lambda value: Path(_named(value)),
        help="golden folder for the gates; dumped from the tiny pair by default",
    )
    group.addoption(
        "--parity-precision", choices=["bfloat16", "float32"], default="bfloat16", help="the device's precision"
    )
    group.addoption(
        "--parity-neuron-required", action="store_true", help="a missing Neuron device is a failure, not a skip"
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Iterator[None]:
    """Behind every conftest.py, read the short names that are nobody's as ours.

    Until then the value of one passes for a test path: where conftest.py is looked for by default counts as well.
    """
    if _free(args, parser, early_config):
        early_config.known_args_namespace.file_or_dir += [".", *early_config.getini("testpaths")]
    yield
    free = _free(args, parser, early_config)
    args[:] = [f"--parity-{word[2:]}" if word.partition("=")[0] in free else word for word in args]


def _free(args: Sequence[str], parser: pytest.Parser, config: pytest.Config) -> set[str]:
    """The short names among the arguments that no option claims so far."""
    _, unknown = parser.parse_known_and_unknown_args(args, copy(config.option))
    return {word.partition("=")[0] for word in unknown} & set(SHORT)


def _named(value: str) -> str:
    """A value that names something.

    Raises:
        ValueError: it is empty.
    """
    if not value.strip():
        raise ValueError("an empty name")
    return value


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "neuron: a gate for the hardware; runs on any engine with --device")


def pytest_report_header(config: pytest.Config) -> str:
    """Say what decides the run."""
    device = config.getoption("--parity-device") or f"neuron ({missing_neuron() or 'present'})"
    return f"parity: device {device}, precision {config.getoption('--parity-precision')}"


def missing_neuron() -> str | None:
    """Why there is no Neuron device here, or None where there is one."""
    return None if any(Path("/dev").glob("neuron[0-9]*")) else "no Neuron device: /dev/neuron* is absent"


@pytest.fixture(scope="session")
def device_name(pytestconfig: pytest.Config) -> str:
    """The device the gates judge; skips, or fails under --parity-neuron-required, where there is none."""
    named = pytestconfig.getoption("--parity-device")
    reason = None if named else missing_neuron()
    if reason and pytestconfig.getoption("--parity-neuron-required"):
        pytest.fail(f"{reason} (--neuron-required)", pytrace=False)
    if reason:
        pytest.skip(f"{reason}; --parity-device NAME runs this gate on an engine")
    return named or "neuron"
