"""Three defects that leave most of the text alone: `parity diff` exits 1 and names the stage."""

from __future__ import annotations

import pytest

from tests.sample import WHOLE, first

MODES = ("local", "chained")
CASES = {
    "attn_window_missing_once": "target.layers.4.attn_out, prompt 0, round 0",
    "tap_off_by_one": "drafter.taps, prompt 0, round 0",
    "rollback_wrong_axis": "kv.drafter.0.k, prompt 0, round 1",
}
FAMILY = {"attn_window_missing_once": "attn_out", "tap_off_by_one": "drafter.taps", "rollback_wrong_axis": "kv.drafter"}


@pytest.fixture
def diff(parity, request):
    """`parity diff` of a device in a mode; a pair of two layers has neither layer 4 nor taps that are one too far."""

    def run(mode, device):
        deep = "attn_window" in device or "tap_off" in device
        golden = request.getfixturevalue("small_golden" if deep else "shallow_golden")
        return parity("diff", "--golden", golden.folder, "--mode", mode, "--device", device)

    return run


@pytest.mark.parametrize(
    ("fault", "mode"),
    [
        (fault, mode)
        for number, fault in enumerate(CASES)
        for mode in (MODES if WHOLE else MODES[number % 2 : number % 2 + 1])
    ],
)
def test_diff_fails_and_names_the_stage_where_the_defect_is(fault, mode, diff):
    found = diff(mode, f"parity.device.faults:{fault}")
    assert found.code == 1, found
    assert f"first divergent: {CASES[fault]}" in found.last
    failed = [line for line in found.out.splitlines() if line.startswith("fail")]
    assert failed and (mode == "chained" or all(FAMILY[fault] in line for line in failed)), found.out


@pytest.mark.parametrize("mode", first(MODES))
def test_the_same_diff_passes_on_the_clean_device(mode, diff):
    found = diff(mode, "numpy")
    assert found.code == 0, found
    assert found.last == f"{mode} verdict: pass"
