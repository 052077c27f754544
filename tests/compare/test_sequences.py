"""What a device does in some of its sequences alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from parity import device
from parity.api import compare_dumps, device_difference
from parity.drive import run_device
from parity.errors import UsageError
from parity.golden.store import Dump
from parity.run_request import RunRequest


def in_every_second_sequence(pipeline, which: int):
    """Taps one layer late, in sequences of this parity: a second set of buffers that was set up wrongly."""
    prefill, begun, drafter = pipeline.prefill, count(), pipeline.drafter
    right = drafter.config
    late = replace(right, taps=tuple(tap + 1 for tap in right.taps))

    def run(*arguments):
        drafter.config = late if next(begun) % 2 == which else right
        return prefill(*arguments)

    pipeline.prefill = run
    return pipeline


@pytest.mark.parametrize("which", [0, 1])
def test_a_defect_of_every_second_sequence_is_recorded(which, small_golden, tiny, tmp_path):
    broken = in_every_second_sequence(device.load(tiny / "target", tiny / "drafter", 4, "float32"), which)
    run = Dump(run_device(RunRequest(broken, small_golden, "chained", (), tmp_path / "run", free=True)))
    report = compare_dumps(small_golden, run)
    assert report.verdict == "fail" and report.first.stage == "drafter.taps", report.first
    with pytest.raises(UsageError, match="the run itself"):
        device_difference(small_golden, run, str(run.folder))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_defect_where_nobody_watches_fails_the_free_run(precision, shallow_golden, tmp_path):
    """A service path apart from the one whose stages are shown, its rows of drafts rotated: the text stays as it is."""
    model = shallow_golden.manifest.model
    apart = device.load(model.target.path, model.drafter.path, 4, precision)
    shown = apart.draft
    apart.draft = lambda tap: np.roll(shown(tap), 1 if getattr(tap, "unwatched", False) else 0)
    run = Dump(run_device(RunRequest(apart, shallow_golden, "chained", (), tmp_path / "run", free=True)))
    report = compare_dumps(shallow_golden, run)
    assert report.verdict == "fail" and report.findings[0].kind == "generation", report.findings


def test_a_device_that_lacks_an_end_token_is_refused_whatever_the_prompts_end_by(shallow_golden, tmp_path):
    """Where no text ends by one it passed, and another prompt would not have ended."""
    model = shallow_golden.manifest.model
    endless = device.load(model.target.path, model.drafter.path, 4, "float32")
    says = endless.describe()
    endless.describe = lambda: replace(says, eos=says.eos[:1])
    with pytest.raises(UsageError, match=f"ends no generation at {says.eos[1]} .`Description.eos`., the golden"):
        run_device(RunRequest(endless, shallow_golden, "chained", (), tmp_path / "run"))
