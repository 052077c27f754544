"""EAGLE-3 goldens are diagnosed as P-EAGLE's are: a fault of the chain, one of either family, by their names."""

from __future__ import annotations

import pytest

from parity.api import diagnose_device, open_golden
from parity.producers import counterfactuals
from tests.sample import WHOLE, by_night

CASES = {
    "chain_recycles_post_norm": ("drafter-recycles-post-norm", "the final norm"),
    "tap_off_by_one": ("tap-off-by-one", 1),
    "chain_position_still": ("input-masked-positions", "flat"),
    "chain_draft_ids": ("chain-token-unmapped", "their ids in the draft vocabulary"),
    "input_slots_plus_one": ("input-slot-off", 1),
}
"""Planted fault to hypothesis and value."""
SAMPLE = ("chain_recycles_post_norm",)


@by_night
@pytest.mark.parametrize("fault", [fault for fault in CASES if WHOLE or fault in SAMPLE])
def test_a_planted_fault_of_a_chain_is_named(fault, chain_golden):
    found = diagnose_device(open_golden(chain_golden.folder), f"parity.device.faults:{fault}", "bfloat16")
    first = found.causes[0]
    assert (first.hypothesis, first.value) == CASES[fault], found
    assert first.explained > 0.99 and first.after.settled and found.unexplained is None


def test_a_golden_is_searched_for_the_defects_of_its_own_drafter(chain_golden, shallow_golden):
    offered = {golden: counterfactuals(golden, 1)[1] for golden in (chain_golden, shallow_golden)}
    of_chain, of_parallel = ({one.id for one in each} for each in offered.values())
    assert "drafter-recycles-post-norm" in of_chain - of_parallel and "fuse-border" in of_parallel - of_chain
