"""`parity engines` and `parity diff --against`, as a user meets them."""

from __future__ import annotations

import json

from tests.sample import by_night

FAULTY = "parity.device.faults:drafter_layer_skipped"


def test_engines_side_by_side(parity, shallow_golden, tmp_path):
    out = tmp_path / "matrix.json"
    devices = ("--device", "numpy", "--device", "parity.device.variants:reversed")
    ended = parity("engines", "--golden", shallow_golden.folder, *devices, "--json", out)
    assert ended.code == 0, ended.out + ended.err
    assert ended.last == "engines verdict: pass"
    assert "numpy against parity.device.variants:reversed" in ended.out
    found = json.loads(out.read_text())
    assert len(found["comparisons"]) == 2 * 3 and found["exit_code"] == 0


@by_night
def test_an_engine_that_shows_a_part_is_judged_through_it(parity, shallow_golden):
    ended = parity("engines", "--golden", shallow_golden.folder, "--device", "numpy,show=layer-kernels")
    assert ended.code == 0 and ended.last == "engines verdict: pass", ended.out


@by_night
def test_the_page_has_a_column_for_every_device_and_pair(parity, shallow_golden):
    ended = parity("engines", "--golden", shallow_golden.folder, "--device", "numpy", "--device", FAULTY, "--markdown")
    assert ended.code == 1
    heading = next(line for line in ended.out.splitlines() if line.startswith("| stage"))
    assert heading == f"| stage | numpy | {FAULTY} | numpy against {FAULTY} |"
    assert "| verdict | pass | fail | fail |" in ended.out


def test_a_device_named_twice_is_refused(parity, shallow_golden):
    ended = parity("engines", "--golden", shallow_golden.folder, "--device", "numpy", "--device", "numpy")
    assert ended.code == 2 and "name every --device once" in ended.err


def test_diff_against_another_device(parity, shallow_golden):
    options = ("--golden", shallow_golden.folder, "--mode", "local", "--stage", "logits")
    ended = parity("diff", "--device", "numpy", "--against", "parity.device.variants:reversed", *options)
    assert ended.code == 0 and "numpy against numpy, reversed" in ended.out
    ended = parity("diff", "--device", "numpy", "--against", "no.such:device", *options)
    assert ended.code == 2 and "cannot be imported" in ended.err
