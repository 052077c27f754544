"""Ways to compute the same: ranks and formulations of the experts, each compared with the golden and every other."""

from __future__ import annotations

import pytest

from parity.api import run_device
from parity.compare.between import DeviceDifference, compare_devices
from parity.engines import MODES, matrix
from parity.golden.views import PromptSlice
from parity.oracles import ReferenceRerun
from parity.policy import read_policy
from tests.sample import WHOLE, cover

DEVICES = ("numpy", "numpy,moe=gathered,tp=2", *(("numpy,tp=2", "numpy,tp=4", "numpy,moe=gathered") if WHOLE else ()))
BOUND = {"chained": 1.5, "local": 0.2}
"""x noise. Chained: what the ways may differ by. Local: all add in float32 and round once, so that two orders of a
sum of n terms part by about 2^-24 sqrt(n), a thousandth of a bfloat16 ULP at n = 1000: one element in a thousand
falls to the other side of a rounding, which is sqrt(1/1000) * sqrt(12) = 0.1 of the noise."""


@pytest.fixture(scope="module")
def golden(shallow_golden):
    """One prompt and two rounds of it."""
    return PromptSlice(shallow_golden, 0, 2)


@pytest.fixture(scope="module")
def runs(golden, tmp_path_factory):
    """The run of a device in a mode, made once."""
    folder, made = tmp_path_factory.mktemp("formulations"), {}

    def run(name, mode):
        if (name, mode) not in made:
            made[name, mode] = run_device(golden, name, mode, out=folder / f"{len(made)}", free=False)
        return made[name, mode]

    return run


def test_every_way_is_green_and_so_is_every_pair_of_them(golden, runs):
    found = matrix(golden, DEVICES, "bfloat16", runs, ReferenceRerun())
    assert found.verdict == "pass" and len(found.alone) == 2 * len(DEVICES)
    assert len(found.pairs) == len(DEVICES) * (len(DEVICES) - 1)
    for (mode, *pair), report in found.pairs.items():
        apart = {stage.stage: stage.x["l2"] for stage in report.stages if stage.x.get("l2") is not None}
        assert len(apart) > (100 if WHOLE else 30) and max(apart.values()) <= BOUND[mode], (
            mode,
            pair,
            max(apart, key=apart.get),
        )


FAULTS_OF_RANKS = (("tp_o_rows_exchanged", "attn_out"), ("tp_gate_up_run", "ffn_out"))


@pytest.mark.parametrize(
    ("fault", "stage", "mode"),
    cover((*fault, mode) for fault in FAULTS_OF_RANKS for mode in MODES),
)
def test_a_defect_of_the_ranks_parts_two_ways(fault, stage, mode, golden, runs):
    wrong = runs(f"parity.device.faults:{fault}", mode)
    report = compare_devices(
        golden, DeviceDifference(golden, wrong, runs("numpy", mode)), read_policy(None, "bfloat16")
    )
    assert report.verdict == "fail" and report.first.stage == f"target.layers.0.{stage}"
