"""Diagnosis on an implementation that was written beside neither the device nor the references that ship here."""

from __future__ import annotations

import pytest

from tests.sample import WHOLE, by_night

DEVICE = "tests.diagnose.foreign"


CLEAN = [("local", "float32"), ("chained", "bfloat16")]
MORE_CLEAN = [("chained", "float32"), ("local", "bfloat16")]


@pytest.mark.parametrize(("mode", "precision"), [*CLEAN, *(MORE_CLEAN if WHOLE else ())])
def test_the_clean_implementation_is_green(parity, small_golden, mode, precision):
    how = ("--device", f"{DEVICE}:clean", "--mode", mode, "--precision", precision)
    found = parity("diff", "--golden", small_golden.folder, *how)
    assert (found.code, found.last) == (0, f"{mode} verdict: pass")


@pytest.mark.parametrize("mode", ("local", "chained") if WHOLE else ("chained",))
def test_the_clean_implementation_has_nothing_to_diagnose(parity, small_golden, tmp_path, mode):
    out = tmp_path / "run"
    made = parity("run", "--golden", small_golden.folder, "--device", f"{DEVICE}:clean", "--mode", mode, "--out", out)
    assert made.code == 0, made
    found = parity("diagnose", out, "--limit", "0", "--golden", small_golden.folder)
    assert found.code == 0 and found.out.startswith("nothing to diagnose"), found


FAULTS = {
    "v_bias_lost": "attn-v-bias-missing",
    "taps_descending": "tap-order",
    "yarn_truncated": "rope-truncated",
    "window_inclusive": "attn-window-size",
}


@by_night
@pytest.mark.parametrize(("fault", "name"), FAULTS.items())
def test_a_mistake_made_elsewhere_is_named(parity, small_golden, fault, name):
    found = parity("diagnose", "--limit", "0", "--golden", small_golden.folder, "--device", f"{DEVICE}:fault_{fault}")
    assert found.code == 1 and found.last.endswith(f"({name})"), found
    assert sum(line[:1].isdigit() for line in found.out.splitlines()[2:]) == 1, found.out
