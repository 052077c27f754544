"""A fault that a whole golden finds is found by one of a twentieth of its size."""

from __future__ import annotations

import pytest

from parity.api import compare_dumps
from parity.builders import builder
from parity.device.faults import CATALOGUE
from parity.drive import run_device
from parity.golden.smaller import Smaller, smaller_golden
from parity.golden.store import Dump
from parity.golden.trust import trusted
from parity.golden.views import GoldenSlice
from parity.guard import unguarded
from parity.run_request import RunRequest
from tests.sample import WHOLE, sample

BY_BITS = {"norm-cast-first"}
"""Seen by the share of unlike bits alone, which no sketch tells: inconclusive."""
FAULTS = [
    fault
    for fault in CATALOGUE.values()
    if fault.chained and "p-eagle" in fault.drafters and (fault.tp, fault.lanes) == (1, 1)
    if not (fault.partial_kv or fault.kv_cache or fault.loop)
]


@pytest.fixture(scope="module")
def one_prompt(request):
    if WHOLE:
        return GoldenSlice(request.getfixturevalue("family_golden")("p-eagle"), 0, 99)
    return GoldenSlice(trusted(request.getfixturevalue("shallow_golden")), 0, 3)


@pytest.fixture(scope="module")
def small(one_prompt, tmp_path_factory):
    asked = Smaller(6, logits="top:8", positions="0-3,62-66" if WHOLE else "0-3,32-36")
    return Dump(smaller_golden(one_prompt, tmp_path_factory.mktemp("small") / "golden", asked))


@pytest.mark.parametrize("fault", sample(FAULTS, lambda one: one.id, lambda one: one.precision), ids=lambda one: one.id)
def test_a_fault_is_found_by_a_small_sketch_as_by_whole_tensors(fault, one_prompt, small, tmp_path):
    device = builder("numpy", one_prompt)(precision=fault.precision)
    fault.plant(unguarded(device))
    run = Dump(run_device(RunRequest(device, one_prompt, "chained", (), tmp_path / "run", free=False)))
    if compare_dumps(one_prompt, run).exit_code == 1:
        assert compare_dumps(small, run).exit_code == (3 if fault.id in BY_BITS else 1)
