"""Drafters without masked rows or a chain of hiddens are diagnosed as any: a fault of each, by its name."""

from __future__ import annotations

import pytest

from parity.api import diagnose_device
from parity.golden.views import GoldenSlice
from tests.sample import WHOLE

CASES = {
    ("draft-model", "draft_norm_last_missing"): ("norm-final-missing-drafter", None),
    ("draft-model", "chain_position_still"): ("input-masked-positions", "all the first one's"),
    ("draft-model", "draft_committed_late"): ("input-committed-positions", 1),
    ("n-gram", "lookup_latest"): ("lookup-place", "the latest"),
}
"""Family and planted fault to hypothesis and value."""
SAMPLE = (("draft-model", "draft_norm_last_missing"),)


@pytest.mark.parametrize(("family", "fault"), [case for case in CASES if WHOLE or case in SAMPLE])
def test_a_planted_fault_of_a_family_is_named(family, fault, family_golden):
    golden = family_golden(family) if WHOLE else GoldenSlice(family_golden(family), 0, 2)
    found = diagnose_device(golden, f"parity.device.faults:{fault}", "bfloat16")
    first = found.causes[0]
    assert (first.hypothesis, first.value) == CASES[family, fault], found
    assert first.explained > 0.99 and first.after.settled and found.unexplained is None
