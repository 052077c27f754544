"""What cannot become a verdict is said before the night, each with its reason."""

from __future__ import annotations

import json

import pytest

from parity.nightly import foresight
from parity.nightly.foresight import devices_lack, obstacles
from tests.nightly.conftest import DYING
from tests.nightly.test_night import DEVICES


@pytest.fixture
def asked(pair):
    return lambda device: (device, *pair.values(), 2)


def test_a_dry_run_tells_every_cell_that_cannot_be_conclusive(parity, write_matrix, cell_name, tmp_path):
    matrix = write_matrix(DEVICES)
    ended = parity("nightly", matrix, "--dry-run", "--json", tmp_path / "plan.json")
    assert ended.code == 3 and ended.last == "5 cells, 1 of them cannot be conclusive"
    assert "cannot be conclusive: --device no.such.module:load cannot be imported" in ended.out
    said = {cell["axes"]["device"]: cell["cannot"] for cell in json.loads((tmp_path / "plan.json").read_text())}
    assert [name for name, why in said.items() if why] == ["absent"]
    assert not list(parity.home.iterdir()), "nothing was made"


def test_a_device_that_ends_its_import_costs_no_other_its_answer(asked, tmp_path, monkeypatch):
    (tmp_path / "deadly.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.chdir(tmp_path)
    told = devices_lack([asked(name) for name in ("numpy", "deadly:load", "numpy,wings=2")])
    said = [why.get("", "") for why in told.values()]
    assert said[0] == "" and "its import ended its process by SIGSEGV" in said[1] and "takes no wings" in said[2]
    monkeypatch.setattr(foresight, "IMPORTS", 0.5)
    assert "gave no answer within 0.5 s" in devices_lack([asked("hangs:load")]).popitem()[1][""]


def test_a_gate_that_asks_for_what_the_device_has_not_says_so(cell, asked, monkeypatch):
    lack = {"positions": "it shows no rotation alone"}
    monkeypatch.setattr(foresight, "devices_lack", lambda asked: dict.fromkeys(asked, lack))
    assert obstacles([cell]) == {}
    (why,) = obstacles([cell.model_copy(update={"gates": ("provenance", "positions")})])[cell.name]
    assert why == "gate positions: it shows no rotation alone"
    assert devices_lack([asked(f"{DYING}:quits")]).popitem()[1].keys() == {"positions"}


@pytest.fixture
def cell_lacks(cell, monkeypatch):
    """What is said of the cell with this changed; devices are not asked."""
    monkeypatch.setattr(foresight, "devices_lack", lambda asked: {device: {} for device in asked})
    return lambda **update: " | ".join(obstacles([cell.model_copy(update=update)]).get(cell.name, ()))


def test_checkpoints_bounds_goldens_and_prompts_are_looked_at(cell_lacks, tiny_golden, tmp_path):
    assert cell_lacks() == ""
    assert "config.json" in cell_lacks(target=str(tmp_path / "none"))
    assert "none.toml" in cell_lacks(bounds=str(tmp_path / "none.toml"))
    assert "is of new tokens 4, not 5" in cell_lacks(max_new_tokens=5)
    assert str(tmp_path) in cell_lacks(golden=str(tmp_path))
    assert cell_lacks(golden="s3://somewhere/else") == "", "what lies elsewhere is not asked for"
    prompts = tmp_path / "p.jsonl"
    for content, words in (("", "holds no prompt"), ("{}\n\n[1]\n", ":2 is no JSON object"), ("{", ":1")):
        prompts.write_text(content)
        assert words in cell_lacks(golden="", prompts=str(prompts))
    assert "none.jsonl" in cell_lacks(golden="", prompts=str(tmp_path / "none.jsonl"))


def test_too_few_rounds_or_prompts_for_acceptance_are_counted_beforehand(cell_lacks, tmp_path):
    assert "354 rounds and 20 prompts are needed; these are 1 prompts" in cell_lacks(gates=("acceptance",))
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("{}\n" * 20)
    few, enough = (
        cell_lacks(golden="", prompts=str(prompts), gates=("acceptance",), max_new_tokens=n) for n in (18, 19)
    )
    assert "340 rounds at the most" in few and enough == ""


def test_a_golden_without_a_gates_stages_says_nothing_in_it(cell_lacks, monkeypatch):
    monkeypatch.setattr(foresight, "NEEDED", {"taps": ("drafter.none",)})
    assert "lacks drafter.none" in cell_lacks(gates=("taps",)) and cell_lacks(gates=("provenance",)) == ""
