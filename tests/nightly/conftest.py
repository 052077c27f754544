"""A golden of one prompt and four tokens, and matrices over it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from parity.golden.store import Dump
from parity.nightly.records import Cell, CellAxes
from tests.sample import cut
from tests.shallow import cut_pair

ROOT = Path(__file__).parents[2]
QUIET = {"GITHUB_ACTIONS": "", "GITHUB_STEP_SUMMARY": ""}
DYING = "tests.nightly.dying"


@pytest.fixture(scope="session")
def tiny_golden(tiny, remake_small_golden, tmp_path_factory) -> Dump:
    """K = 2, one prompt, four tokens of a pair of two layers each: a cell on it takes a second."""
    folder = tmp_path_factory.mktemp("tiny golden")
    prompts = folder / "one.jsonl"
    prompts.write_text(cut((tiny / "prompts/chat.jsonl").read_text().splitlines()[0]))
    return remake_small_golden(folder / "golden", prompts=prompts, max_new_tokens=4, k=2, **cut_pair(tiny, folder))


@pytest.fixture(scope="session")
def pair(tiny_golden) -> dict[str, str]:
    """Where the checkpoints of that golden lie, by side."""
    model = tiny_golden.manifest.model
    return {"target": model.target.path, "drafter": model.drafter.path}


@pytest.fixture(scope="session")
def write_matrix(pair, tiny_golden, tmp_path_factory) -> Callable[..., Path]:
    """A matrix of these devices over the golden of four tokens; keywords are of [run]."""

    def write(devices: Mapping[str, str], **run: object) -> Path:
        path = tmp_path_factory.mktemp("matrix") / "matrix.toml"
        lines = ["k = [2]", "[cases.one]", *(f"{side} = '{folder}'" for side, folder in pair.items())]
        lines += ["max_new_tokens = 4", f"golden = '{tiny_golden.folder}'", "[devices]"]
        lines += [f"{name} = '{device}'" for name, device in devices.items()]
        run = {"gates": ["provenance"], "diagnose": "false", "cell_timeout": 120, **run}
        path.write_text("\n".join([*lines, "[run]", *(f"{name} = {value}" for name, value in run.items())]) + "\n")
        return path

    return write


@pytest.fixture(scope="session")
def cell_name() -> Callable[[str], str]:
    """The name of a device's cell in these matrices."""
    return lambda device: f"one.{device}.peagle.k2.tp1.bfloat16"


@pytest.fixture
def cell(pair, tiny_golden) -> Cell:
    """A cell on the golden of four tokens."""
    return Cell(
        axes=CellAxes(case="one", device="numpy", family="peagle", k=2, tp=1, policy="bfloat16"),
        **pair,
        prompts="",
        max_new_tokens=4,
        golden=str(tiny_golden.folder),
        device="numpy",
        gates=("provenance",),
    )


def nightly(*arguments: object, home: Path, **options) -> subprocess.Popen[str]:
    """`parity nightly ARGUMENTS` in a process of its own."""
    environment = os.environ | QUIET | {"PARITY_HOME": str(home)} | options.pop("env", {})
    command = [sys.executable, "-m", "parity", "nightly", *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )
