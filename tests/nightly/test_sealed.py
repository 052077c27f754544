"""A cell's file says what its night wrote: an edit by hand, or a verdict against its own findings, is refused."""

from __future__ import annotations

import json

import pytest

from parity.cli.night_end import end
from parity.errors import UsageError
from parity.golden.digests import sealed
from parity.history import append, load
from parity.nightly.folder import NightFolder
from parity.nightly.metrics import of_cell
from parity.nightly.records import Cell, CellAxes, CellResult, Night
from tests.sample import WHOLE

AXES = CellAxes(case="one", device="numpy", family="peagle", k=2, tp=1, policy="bfloat16")
CELL = Cell(axes=AXES, target="t", drafter="d", prompts="p", max_new_tokens=4, device="numpy", gates=("stages",))
NIGHT = Night(
    name="20261121T020000.000",
    started="2026-11-21T02:00:00+00:00",
    commit="",
    dirty=False,
    matrix="m",
    matrix_digest="",
    engine="local",
    machine="x86_64",
    cells=(CELL,),
)
CHECK = {"verdict": "fail", "name": "local", "evidence": "far off"}
RED = {
    "gates": ({"gate": "stages", "verdict": "fail", "reproduce": "parity gate", "checks": (CHECK,)},),
    "findings": ("chained: drafter.taps: no rows",),
    "stages": {"local": ({"stage": "drafter.taps", "verdict": "fail"},)},
    "error": "its process was ended by SIGSEGV",
}
"""By field, what no cell that passes has."""


def found(verdict: str, repeat: int = 0, **fields: object) -> CellResult:
    metrics = tuple(of_cell(verdict, 1.0))
    return CellResult(
        night=NIGHT.name, cell=CELL, repeat=repeat, verdict=verdict, started="", seconds=1.0, metrics=metrics, **fields
    )


@pytest.fixture
def folder(tmp_path) -> NightFolder:
    """A night of one red cell, measured twice."""
    made = NightFolder.start(tmp_path / "night", NIGHT)
    for repeat in (0, 1):
        made.add(found("fail", repeat, first="drafter.taps", gates=RED["gates"]))
    return made


def edit(folder: NightFolder, repeat: int) -> None:
    """Every `fail` of a file becomes a `pass`, as `sed` does it."""
    file = folder.result_file(CELL.name, repeat)
    file.write_text(file.read_text().replace('"fail"', '"pass"'))


@pytest.mark.parametrize("repeat", [0, 1])
def test_a_cell_edited_by_hand_is_refused_in_a_report_and_told_to_no_history(repeat, folder, parity, capsys):
    past = parity.home / "history"
    edit(folder, repeat)
    told = parity("report", folder.path)
    name = folder.result_file(CELL.name, repeat).name
    assert told.code == 2 and f"{name} is not what the night wrote" in told.err and not told.out
    with pytest.raises(UsageError, match="is not what the night wrote: its digest does not agree"):
        end(folder, str(past), False, None)
    assert not past.exists()


def test_a_night_with_a_cell_edited_by_hand_does_not_go_on(write_matrix, folder, parity, tmp_path):
    matrix, night = write_matrix({"absent": "no.such.module:load"}, retries=0), tmp_path / "resumed"
    assert parity("nightly", matrix, "--out", night, "--no-history", "--workers", "1").code == 3
    (file,) = (night / "cells").glob("*.json")
    file.write_text(file.read_text().replace('"inconclusive"', '"pass"'))
    told = parity("nightly", matrix, "--out", night)
    assert told.code == 2 and f"{file.name} is not what the night wrote" in told.err and not told.out
    file.unlink()
    if WHOLE:  # a night goes on in nightly/test_night
        assert parity("nightly", matrix, "--out", night, "--no-history", "--workers", "1").code == 3


def test_a_cell_of_an_older_parity_has_no_digest_and_is_refused(folder, parity):
    file = folder.result_file(CELL.name)
    fields = json.loads(file.read_text())
    fields.pop("digest", None)
    file.write_text(json.dumps(fields))
    told = parity("report", folder.path)
    assert told.code == 2 and "has no digest" in told.err and "delete it" in told.err


@pytest.mark.parametrize("field", RED)
@pytest.mark.parametrize("verdict", ["pass", "warn"])
def test_a_verdict_against_its_own_findings_is_refused(verdict, field, folder):
    folder.result_file(CELL.name).write_bytes(
        sealed(json.loads(found(verdict, **{field: RED[field]}).model_dump_json()))
    )
    with pytest.raises(UsageError, match=f"contradicts itself: its verdict is {verdict}, and "):
        folder.worst()


def test_what_was_written_is_read_and_recorded(folder, tmp_path):
    assert [one.verdict for one in folder.measured()] == ["fail", "fail"]
    append(str(tmp_path / "past"), NIGHT, folder.measured())
    assert set(load(str(tmp_path / "past"))["cell_verdict"]) == {"fail"}


def test_a_failure_without_a_place_is_refused(folder):
    folder.result_file(CELL.name).write_bytes(sealed(json.loads(found("fail").model_dump_json())))
    with pytest.raises(UsageError, match="contradicts itself: its verdict is fail, and it names no place"):
        folder.worst()


def test_another_night_s_result_is_refused(folder):
    file, other = folder.result_file(CELL.name), NightFolder(folder.path.parent / "other")
    NightFolder.start(other.path, NIGHT.model_copy(update={"name": "20261122T020000.000"}))
    other.result_file(CELL.name).write_bytes(file.read_bytes())
    with pytest.raises(UsageError, match=f"is a result of {CELL.name} in night {NIGHT.name}, not this one's"):
        other.worst()


def test_a_plan_without_its_red_cell_is_not_what_the_night_wrote(folder, tmp_path):
    """Its result lay there beside, and nobody asked for it: the night passed."""
    file = folder.path / "night.json"
    plan = json.loads(file.read_text())
    for cut, words in (
        (json.dumps(plan | {"cells": []}), "night.json is not what the night wrote"),
        (json.dumps({key: value for key, value in plan.items() if key != "digest"}), "night.json has no digest"),
    ):
        file.write_text(cut)
        with pytest.raises(UsageError, match=words):
            end(NightFolder(folder.path), str(tmp_path / "history"), False, None)
