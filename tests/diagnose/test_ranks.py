"""Ranks that differ in a replica: the rank whose tensors fail is explained; rounding alone is read as such."""

from __future__ import annotations

import json

import numpy as np
import pytest

from parity.api import run_device
from parity.diagnose.failing_run import FailingRun, failing_run
from parity.diagnose.ranks import RankMismatch, RankView, rank_causes
from parity.golden.store import Dump
from parity.golden.writer import DumpWriter
from parity.policy import read_policy
from tests.sample import by_night

STAGE = "target.layers.1.attn_out"


@pytest.fixture(scope="module")
def whole(shallow_golden, tmp_path_factory) -> Dump:
    return run_device(shallow_golden, "numpy", "local", "float32", out=tmp_path_factory.mktemp("ranks") / "whole")


@pytest.fixture
def run_of(whole, tmp_path):
    """A run of two ranks that hold all alike, but for what `change` makes of the second one's STAGE in round 1."""

    def make(change) -> Dump:
        with DumpWriter(tmp_path / "two") as writer:
            for rank in range(2):
                for prompt in range(len(whole.manifest.case.prompts)):
                    tensors = {
                        place[2:]: np.array(whole.contents(*place)) for place in whole.rows if place[1] == prompt
                    }
                    if rank and not prompt:
                        tensors[1, STAGE] = change(tensors[1, STAGE])
                    writer.add(prompt, "float32", whole.declared.values(), tensors, rank)
            rest = {name: getattr(whole.manifest, name) for name in ("stages", "created", "producer", "model", "case")}
            writer.finish(kind="run", **rest)
        return Dump(tmp_path / "two")

    return make


def judged(golden, run):
    return failing_run(golden, run, read_policy(None, "float32"))


def test_ranks_that_hold_the_same_are_judged_as_one(run_of, shallow_golden):
    assert judged(shallow_golden, run_of(lambda x: x)) is None


def test_the_rank_whose_tensors_fail_is_explained(run_of, shallow_golden, whole):
    run = run_of(lambda x: 1.5 * x)
    found = judged(shallow_golden, run)
    assert isinstance(found, FailingRun) and isinstance(found.run, RankView) and found.run.rank == 1
    assert (found.first.stage, found.first.round) == (STAGE, 1)
    place = ("float32", 0, 1, STAGE)
    np.testing.assert_array_equal(found.run.contents(*place), np.float32(1.5) * whole.contents(*place))
    np.testing.assert_array_equal(run.contents(*place), whole.contents(*place))


def test_ranks_that_differ_by_rounding_alone_are_no_clean_run(run_of, shallow_golden):
    found = judged(shallow_golden, run_of(lambda x: np.nextafter(x, np.float32(np.inf))))
    assert isinstance(found, RankMismatch) and found.first.stage == STAGE and found.stages == 1
    assert 0 < found.largest < 2e-7
    (read,) = rank_causes(found)
    assert read.id == "tp-order-by-rank" and read.check.verdict == "fail" and STAGE in read.check.evidence


def test_a_reading_of_ranks_is_printed_and_ends_red(run_of, shallow_golden, parity, tmp_path):
    run = run_of(lambda x: np.nextafter(x, np.float32(np.inf)))
    ended = parity(
        "diagnose", run.folder, "--limit", "0", "--golden", shallow_golden.folder, "--json", tmp_path / "found.json"
    )
    assert ended.code == 1 and "tp-order-by-rank" in ended.last, ended
    assert json.loads((tmp_path / "found.json").read_text())[0]["id"] == "tp-order-by-rank"


@by_night
def test_a_sum_that_is_not_reduced_is_named_as_one_rank_has_it(shallow_golden, parity, tmp_path):
    ended = parity(
        "diagnose",
        "--limit",
        "0",
        "--device",
        "parity.device.faults:tp_attn_not_reduced",
        "--golden",
        shallow_golden.folder,
        "--json",
        tmp_path / "found.json",
    )
    found = json.loads((tmp_path / "found.json").read_text())
    assert ended.code == 1 and [cause["hypothesis"] for cause in found["causes"]] == ["tp-attn-not-reduced"], ended.out
    assert found["causes"][0]["value"] == [0, 2] and found["unexplained"] is None
