"""Dumps that the named tools wrote of a device's run are judged as the run itself is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parity.cli.imports import FORMATS
from parity.fixtures.recipe.imports import STAGES, TOOLS
from parity.imports import READERS
from tests.imports.conftest import RECORDED, verdicts

TOOLS = (*TOOLS, "aws")


def test_the_command_offers_every_reader():
    assert tuple(READERS) == FORMATS


@pytest.mark.parametrize("tool", TOOLS)
def test_the_imported_run_gets_the_verdict_of_the_run_itself(tool, dumped, imported, short_golden, short_run):
    run = imported(tool, dumped(tool), names=RECORDED / f"{tool}.toml")
    assert verdicts(short_golden, run) == verdicts(short_golden, short_run) == dict.fromkeys(STAGES, "pass")
    assert run.manifest.kind == "run" and run.manifest.producer.versions == {"imported from": tool}


@pytest.mark.parametrize("tool", TOOLS)
def test_the_tensors_are_the_run_s(tool, dumped, imported, short_run):
    """Recorded elsewhere the sums round otherwise, by a few bfloat16 ULP; another place's tensor is off by 100 %."""
    run = imported(tool, dumped(tool), names=RECORDED / f"{tool}.toml")
    for variant, prompt, round_, stage in run.rows:
        ours, true = (dump.contents(variant, prompt, round_, stage).astype(np.float32) for dump in (run, short_run))
        assert ours.shape == true.shape and np.linalg.norm(ours - true) <= 0.1 * np.linalg.norm(true), stage


@pytest.mark.parametrize("tool", TOOLS)
def test_a_wrong_tensor_fails_at_its_stage(tool, dumped, imported, short_golden, monkeypatch):
    def spoiled(paths, torch_load):
        for one in READERS_BEFORE(paths, torch_load):
            wrong = "residual" in one.name
            yield replace(one, load=lambda one=one: (one.load() * 1.25).astype(one.load().dtype)) if wrong else one

    READERS_BEFORE = READERS[tool]
    monkeypatch.setitem(READERS, tool, spoiled)
    run = imported(tool, dumped(tool), names=RECORDED / f"{tool}.toml")
    found = verdicts(short_golden, run)
    assert {stage for stage, verdict in found.items() if verdict != "pass"} == {"drafter.layers.3.out"}


@pytest.mark.parametrize("tool", ["sglang", "aws"])
def test_swapped_ranks_fail(tool, dumped, imported, short_golden, monkeypatch):
    before = READERS[tool]
    monkeypatch.setitem(READERS, tool, lambda *said: (replace(one, rank=1 - one.rank) for one in before(*said)))
    run = imported(tool, dumped(tool), names=RECORDED / f"{tool}.toml")
    assert verdicts(short_golden, run)["target.layers.0.q"] == "fail"


@pytest.mark.parametrize("tool", TOOLS)
def test_a_round_late_fails(tool, dumped, imported, short_golden, monkeypatch):
    """Steps of the tool that are no rounds of ours: nothing passes by being matched to another round."""
    before = READERS[tool]

    def late(*said):
        for one in before(*said):
            if one.step is not None:
                yield replace(one, step=one.step + 1)

    monkeypatch.setitem(READERS, tool, late)
    run = imported(tool, dumped(tool), names=RECORDED / f"{tool}.toml")
    assert set(verdicts(short_golden, run).values()) != {"pass"}
