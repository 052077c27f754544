"""The workflow for a Trainium runner: it parses, and what it runs exists."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml

from parity.cli import cli
from parity.nightly.expand import cells
from parity.nightly.matrix import read_matrix
from tests.nightly.conftest import ROOT

FILE = ROOT / "docs" / "workflows" / "neuron-nightly.yml"


@pytest.fixture(scope="module")
def job() -> dict:
    """The workflow's only job."""
    found = yaml.safe_load(FILE.read_text())
    assert set(found) == {"name", True, "permissions", "concurrency", "jobs"}  # YAML 1.1 reads `on` as true
    assert found[True]["schedule"][0]["cron"].count(" ") == 4
    (job,) = found["jobs"].values()
    return job


def commands(job: dict, program: str) -> list[list[str]]:
    """Every call of a program, as words."""
    lines = [line for step in job["steps"] for line in step.get("run", "").splitlines()]
    words = [shlex.split(line) for line in lines]
    return [found for found in words if found and Path(found[0]).name == program]


def test_it_runs_the_hardware_gates_and_the_matrix_on_a_runner_of_its_own(job):
    assert "self-hosted" in job["runs-on"] and job["timeout-minutes"] > 0
    assert len(commands(job, "pytest")) == len(commands(job, "parity")) == 1


def test_every_option_of_parity_exists(job):
    for _, verb, *words in commands(job, "parity"):
        command = cli.commands[verb]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known
        context = command.make_context(verb, list(words))  # values are taken, too; nothing runs
        assert context.params["history"] == "$HISTORY" and context.params["github"]


def test_every_option_of_pytest_exists(job, pytestconfig):
    ((_, *words),) = commands(job, "pytest")
    known = {option for group in pytestconfig._parser._groups for one in group.options for option in one.names()}
    known |= {option for one in pytestconfig._parser._anonymous.options for option in one.names()}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known
    assert words[words.index("-m") + 1] == "neuron"


def test_a_red_gate_does_not_keep_the_matrix_from_running_nor_the_night_from_being_kept(job):
    steps = job["steps"][-2:]
    assert [step["if"] for step in steps] == ["${{ !cancelled() }}"] * 2
    assert "night/" in steps[-1]["with"]["path"] and "upload-artifact" in steps[-1]["uses"]


def test_its_matrix_has_three_cells(job):
    found = cells(read_matrix(ROOT / job["env"]["MATRIX"]))
    assert [cell.axes.device for cell in found] == ["neuron", "neuron", "numpy"]
    assert all(Path(path).exists() for cell in found for path in (cell.target, cell.drafter, cell.prompts))
