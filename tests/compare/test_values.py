"""Values: NaN, a constant, a scale and one bad row each end in a failure that names the stage."""

from __future__ import annotations

import numpy as np
import pytest

from parity.api import compare_dumps, run_device
from parity.golden.store import Dump
from parity.golden.views import PromptSlice

STAGE = "target.layers.1.ffn_out"


def spoil_nan(value):
    value.reshape(-1)[7] = np.nan


def spoil_constant(value):
    value[:] = 0.5


def spoil_zero(value):
    value[:] = 0


def spoil_scale(value):
    value[:] = (value.astype(np.float32) * 1.05).astype(value.dtype)


def spoil_row(value):
    value[0] = np.roll(value[0], 1)


@pytest.fixture(scope="module")
def golden(shallow_golden):
    """One prompt and two rounds of it."""
    return PromptSlice(shallow_golden, 0, 2)


@pytest.fixture
def run_with(golden, tmp_path, monkeypatch):
    """A run whose recorded tensors of STAGE were changed after capture."""
    from parity import drive

    class SpoilingTrace(drive.ForcingTrace):
        def __call__(self, stage, value):
            back = super().__call__(stage, value)
            if stage == STAGE:
                self.spoil(self.tensors[self.round, stage])
            return back

    def make(spoil) -> Dump:
        SpoilingTrace.spoil = staticmethod(spoil)
        monkeypatch.setattr(drive, "ForcingTrace", SpoilingTrace)
        return run_device(golden, "numpy", "local", out=tmp_path / "run", free=False)

    return make


@pytest.mark.parametrize("spoil", [spoil_nan, spoil_constant, spoil_zero, spoil_scale, spoil_row])
def test_a_spoilt_stage_fails_by_name_and_no_other_does(spoil, golden, run_with):
    report = compare_dumps(golden, run_with(spoil))
    assert report.exit_code == 1
    assert report.first.stage == STAGE
    assert {s.stage for s in report.stages if s.verdict == "fail"} | {f.stage for f in report.findings} == {STAGE}
