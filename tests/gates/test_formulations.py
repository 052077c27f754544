"""Ways to compute the same: ranks and formulations of the experts, each held against every other at every stage.

The distance of two devices is measured in the noise of the bfloat16 reference. Two that round on their own lie
sqrt(2) times one device's noise apart; what only sums in another order rounds mostly alike and stays below.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from parity.cli.diff import compare_dumps
from parity.cli.run import make_run
from parity.compare.floor import HALF_ULP
from parity.compare.rows import FLOOR
from parity.golden.slices import OnePrompt

DEVICES = ("numpy", "numpy,tp=2", "numpy,tp=4", "numpy,moe=gathered", "numpy,moe=gathered,tp=2")
BOUND = {"chained": 1.5, "local": 0.2}
"""x noise. Chained: the default policy's own against the golden. Local: all add in float32 and round once, so that two
orders of a sum of n terms part by about 2^-24 sqrt(n), a thousandth of a bfloat16 ULP at n = 1000: one element in
a thousand falls to the other side of a rounding, sqrt(1/1000) * sqrt(12) = 0.1 of the noise."""


@pytest.fixture(scope="module", params=["local", "chained"])
def mode(request):
    return request.param


@pytest.fixture(scope="module")
def golden(small_golden):
    """One prompt and two rounds of it."""
    return OnePrompt(small_golden, 0, 2)


@pytest.fixture(scope="module")
def runs(mode, golden, tmp_path_factory):
    folder = tmp_path_factory.mktemp("formulations")
    return {name: make_run(golden, name, mode, out=folder / name.replace(",", "-")) for name in DEVICES}


@pytest.mark.parametrize("name", DEVICES)
def test_each_is_green_under_the_default_policy(name, runs, golden):
    report = compare_dumps(golden, runs[name])
    assert report.verdict == "pass" and len(report.stages) == 126


@pytest.mark.parametrize("pair", list(combinations(DEVICES, 2)), ids=" ".join)
def test_each_pair_is_one_device_at_every_stage(pair, mode, runs, golden):
    found = distances(golden, *(runs[name] for name in pair), mode)
    worst = max(found, key=found.get)
    assert len(found) == 113 and found[worst] <= BOUND[mode], (worst, found[worst])


@pytest.mark.parametrize("fault", ["tp_ffn_reduced_float8", "tp_sinks_first"])
def test_a_defect_of_the_ranks_is_a_distance(fault, mode, runs, golden, tmp_path):
    wrong = make_run(golden, f"device.faults:{fault}", mode, out=tmp_path / "run")
    found = distances(golden, runs["numpy"], wrong, mode)
    assert max(found.values()) > 2 * BOUND[mode]


def distances(golden, one, other, mode):
    """Stage to the relative L2 between two runs over the reference's own, both pooled; infinite where integers differ.

    Choices are left out: a comparison forces them, and one that tips at a tie is judged against the golden.
    """
    names = {name: named for name, named in golden.declared.items() if not named.stage.forced}
    return {name: distance(golden, one, other, named, mode) for name, named in names.items()}


def distance(golden, one, other, named, mode):
    places = [place[1:] for place in golden.rows if place[0] == "float32" and place[3] == named.name]
    mine, theirs = ([run.contents("bfloat16", *place).astype(np.float64) for place in places] for run in (one, other))
    if named.stage.exact:
        return 0.0 if all(map(np.array_equal, mine, theirs)) else np.inf
    true, floor = ([golden.contents(variant, *place).astype(np.float64) for place in places] for variant in ("float32", FLOOR[mode]))
    size = norm(true)
    return norm(map(np.subtract, mine, theirs)) / max(norm(map(np.subtract, floor, true)), HALF_ULP * size)


def norm(tensors):
    return float(np.sqrt(sum((one**2).sum() for one in tensors)))
