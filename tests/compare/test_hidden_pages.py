"""Pages that a device does not show: rows that may have taken others settle nothing, all other rows are judged."""

from __future__ import annotations

import numpy as np
import pytest

from parity.api import compare_dumps, open_golden, run_device
from parity.compare.hidden_pages import near_ties
from parity.golden.store import Dump
from parity.golden.views import GoldenSlice
from tests.sample import WHOLE

STAGE = "drafter.layers.0.out"


@pytest.fixture(scope="module")
def golden(paged_golden):
    """The first prompt; by night both."""
    golden = open_golden(paged_golden.folder)
    return golden if WHOLE else GoldenSlice(golden, 0, 99)


@pytest.fixture(scope="module")
def run(golden, tmp_path_factory):
    out = tmp_path_factory.mktemp("pages") / "run"
    return run_device(golden, "numpy,show=layer-outputs", "chained", "bfloat16", out=out, free=False)


def spoilt(run: Dump, spots: set[tuple[int, int, int]]) -> Dump:
    """The run with noise of its own size in these rows of the prefill."""
    other = Dump(run.folder)
    true = other.stored

    def stored(variant, prompt, round_, stage):
        value = true(variant, prompt, round_, stage)
        rows = [position for p, r, position in spots if (p, r, stage) == (prompt, round_, STAGE)]
        if rows and round_ == 0:
            value = value.copy()
            value[rows] = value[rows] * 1.2
        return value

    other.stored = stored
    return other


def test_rows_whose_pages_are_nearly_tied_settle_nothing_and_others_fail(golden, run):
    tied = {spot for spot in near_ties(golden, 0) if spot[1] == 0}
    length = len(golden.manifest.case.prompts[0].ids) - 1
    others = {(0, 0, position) for position in range(length)} - tied
    assert tied and others
    for spots, due in ((set(sorted(tied)[:1]), "inconclusive"), (set(sorted(others)[-1:]), "fail")):
        report = compare_dumps(golden, spoilt(run, spots))
        stage = next(one for one in report.stages if one.stage == STAGE)
        assert (stage.verdict, report.verdict) == (due, due), stage
        assert ("settles it" in stage.note) == (due == "inconclusive")


def test_a_draft_against_the_runs_own_logits_fails_whatever_the_pages(golden, run):
    other = Dump(run.folder)
    true = other.stored

    def stored(variant, prompt, round_, stage):
        value = true(variant, prompt, round_, stage)
        wrong = (prompt, round_, stage) == (0, 1, "drafter.draft_tokens")
        return np.roll(value, 1) if wrong else value

    other.stored = stored
    stage = next(one for one in compare_dumps(golden, other).stages if one.stage == "drafter.draft_tokens")
    assert stage.against_scores and stage.verdict == "fail", stage


def test_in_float32_no_row_is_set_apart(golden, tmp_path):
    exact = run_device(golden, "numpy,show=layer-outputs", "chained", "float32", out=tmp_path / "run", free=False)
    spots = set(sorted(spot for spot in near_ties(golden, 0) if spot[1] == 0)[:1])
    assert compare_dumps(golden, spoilt(exact, spots)).verdict == "fail"
