"""The xla device on the tiny pair: held to the golden, and faults planted in it."""

from __future__ import annotations

from itertools import product

import pytest

pytest.importorskip("jax", reason="the xla engine needs jax: pip install 'parity-harness[xla]'")

from parity.api import compare_dumps, run_device
from parity.builders import builder, planted_faults
from parity.compare.between import DeviceDifference
from parity.faults import FaultRunRequest, compare_planted
from tests.sample import WHOLE

PASSES = [*product(["local", "chained"], ["bfloat16", "float32"])]


@pytest.mark.parametrize(("mode", "precision"), PASSES if WHOLE else [("chained", "float32")])
def test_every_stage_is_within_its_bounds(mode, precision, shallow_golden, tmp_path):
    runs = [
        run_device(shallow_golden, name, mode, precision, out=tmp_path / name, free=name == "xla")
        for name in ("xla", "numpy")
    ]
    report = compare_dumps(shallow_golden, runs[0])
    assert report.verdict == "pass", report.first
    assert report.stages and not [stage.stage for stage in report.stages if stage.verdict != "pass"]
    against = compare_dumps(shallow_golden, DeviceDifference(shallow_golden, *runs))
    assert against.verdict == "pass", against.first
    notes, versions = runs[0].manifest.producer.notes, runs[0].manifest.producer.versions
    assert notes["platform"] and int(notes["programs"]) > 0 and {"jax", "jaxlib"} < versions.keys()


@pytest.mark.parametrize(
    ("name", "pair"),
    [("drafter-layer-skipped", "small_golden"), *([("attn-cache-fp8", "shallow_golden")] if WHOLE else [])],
)
def test_a_planted_fault_is_killed_and_placed(name, pair, request):
    """One looks at rows on the host, the other at which weights it is given: a compiled program has neither."""
    golden = request.getfixturevalue(pair)
    asked = FaultRunRequest(golden, "xla", builder("xla", golden), rounds=int(WHOLE))
    seen = compare_planted(asked, planted_faults()[0][name], "local")
    assert seen.placed, seen
