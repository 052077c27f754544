"""A run recorded in pieces is the run that was recorded at once."""

from __future__ import annotations

import numpy as np
import pytest

from parity.adapters import read_piece, write_run
from parity.api import compare_dumps, open_golden, run_device
from parity.builders import device
from parity.errors import UsageError
from parity.golden.store import Dump


@pytest.fixture(scope="module")
def golden(shallow_golden):
    return open_golden(shallow_golden.folder)


@pytest.fixture(scope="module")
def run(golden, once_for_all):
    return Dump(once_for_all("pieces", lambda out: run_device(golden, precision="float32", out=out, free=False)))


@pytest.fixture(scope="module")
def says(golden):
    return device("numpy", golden, "float32").describe()


def test_two_partial_recordings_are_one_run(golden, run, says, tmp_path):
    whole = read_piece(run)
    target = {place: value for place, value in whole.items() if not place[2].startswith("drafter")}
    drafter = {place: value for place, value in whole.items() if "drafter" in place[2]}  # the drafter's caches twice
    out = write_run(golden, tmp_path / "run", says, [drafter, target], forced=run.manifest.case.forced)
    assert {row.key: row.sha256 for row in Dump(out).manifest.tensors} == {
        row.key: row.sha256 for row in run.manifest.tensors
    }
    assert compare_dumps(golden, Dump(out)).verdict == "pass"


def test_what_no_piece_holds_is_missing(golden, run, says, tmp_path):
    piece = {place: value for place, value in read_piece(run).items() if place[1:] != (1, "target.layers.1.out")}
    report = compare_dumps(golden, Dump(write_run(golden, tmp_path / "run", says, [piece])))
    assert report.verdict == "fail"
    assert {(one.kind, one.round, one.stage) for one in report.findings} == {("missing", 1, "target.layers.1.out")}


@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        ((0, 0, "target.embed"), np.zeros((2, 96), np.float32), "two pieces say otherwise of target.embed"),
        ((0, 0, "target.embedding"), np.zeros((2, 96), np.float32), "is no place of"),
        ((7, 0, "target.embed"), np.zeros((2, 96), np.float32), "is no place of"),
        ((0, 1, "target.logits"), np.zeros((2, 96), np.float32), "not in this kind of round"),
        ((0, 0, "target.layers.1.q"), np.zeros((2, 96), np.float32), r"came with shape \[2, 96\]"),
    ],
)
def test_pieces_that_do_not_fit_are_refused(golden, run, says, tmp_path, place, value, sentence):
    with pytest.raises(UsageError, match=sentence):
        write_run(golden, tmp_path / "run", says, [read_piece(run), {place: value}])
    assert not (tmp_path / "run").exists()
