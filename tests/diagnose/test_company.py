"""A prompt that fails by others, before it or beside it, is told from one that fails alone."""

from __future__ import annotations

import pytest

from parity.api import diagnose_device
from parity.diagnose.gates import GateCause
from tests.sample import WHOLE, by_night

LIMIT = 2 if WHOLE else 0.2
"""Seconds for what is behind another sequence: who it fails by is known before."""


@pytest.mark.parametrize(
    ("name", "defect", "where"),
    [
        ("remembers", "state-across-prompts", "behind another sequence"),
        pytest.param("second", "state-across-prompts", "behind another sequence", marks=by_night),
        pytest.param("beside", "batch-neighbours", "beside others", marks=by_night),
    ],
)
def test_what_passes_alone_is_not_searched_for_in_kernels(name, defect, where, shallow_golden):
    (cause,) = diagnose_device(shallow_golden, f"tests.diagnose.company_devices:{name}", limit=LIMIT)
    assert isinstance(cause, GateCause) and cause.id == defect
    assert where in cause.check.evidence and "target.layers.1.attn_out" in cause.headline
    assert cause.reproduce.endswith(("--precision bfloat16 --mode local", "--precision bfloat16 --mode chained"))


def test_what_a_sequence_finds_of_the_one_before_is_told(shallow_golden):
    (cause,) = diagnose_device(shallow_golden, "tests.diagnose.company_devices:keeps", limit=LIMIT)
    assert cause.id == "state-across-prompts"
    held = "run behind prompt 0, all 4 wrong rows hold what belongs 6 positions behind and 1 prompt before"
    assert cause.says.startswith(f"a sequence depends on what ran before it: {held}")


@by_night
def test_the_part_that_is_wrong_behind_another_sequence_is_told(shallow_golden):
    (cause,) = diagnose_device(shallow_golden, "tests.diagnose.company_devices:remembers", limit=60)
    assert cause.says.startswith("a sequence depends on what ran before it: 1.10") and "times as large" in cause.says


@by_night
def test_the_hypothesis_that_explains_what_another_sequence_leaves_is_told(shallow_golden):
    device = "parity.device.faults:only,fault=attn-scale-missing,where=prompt > 1"
    (cause,) = diagnose_device(shallow_golden, device, limit=60)
    assert cause.id == "state-across-prompts" and cause.of == ("attn-scale",), cause


@pytest.mark.parametrize(
    ("fault", "stage", "told"),
    [
        ("batch_rows_dropped", "target.layers.0.ffn_out", "wrong rows hold zeros; from position 12 on"),
        pytest.param("batch_page_of_neighbour", "target.layers.0.attn_out", "positions 4 to ", marks=by_night),
    ],
)
def test_of_lanes_that_differ_the_stage_and_what_is_wrong_there_is_told(fault, stage, told, shallow_golden):
    first, *_ = diagnose_device(shallow_golden, f"parity.device.faults:{fault}", limit=LIMIT)
    assert first.id == "batch-neighbours" and first.gate == "batch"
    assert first.headline.startswith(f"first divergent: {stage}, prompt ") and told in first.headline


@by_night
def test_a_defect_that_every_sequence_has_is_named_as_ever(shallow_golden):
    found = diagnose_device(shallow_golden, "parity.device.faults:tap_off_by_one,lanes=2", limit=60)
    assert [cause.hypothesis for cause in found.causes] == ["tap-off-by-one"]
