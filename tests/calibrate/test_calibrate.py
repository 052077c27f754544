"""Calibration: clean variants round differently and pass, a device that rounds too often is a false alarm."""

from __future__ import annotations

import json
from importlib import import_module

import pytest

from parity.builders import clean_devices, device, gate_context
from parity.calibrate import MODES, Calibration, CalibrationRequest, Comparison, calibrate
from parity.device import load
from parity.device.faults import CATALOGUE
from parity.device.variants import CLEAN
from parity.factories import ENGINES
from parity.gates.clean import CleanGates, GateCalibration, clean_gates
from parity.gates.gate import Check
from parity.gates.lifecycle_cases import Lives
from parity.golden.views import PromptSlice
from parity.policy import read_policy
from tests.sample import WHOLE, by_night

DIFFERENT = ("reversed", "split_k_4", *(("shuffled_split_k_3",) if WHOLE else ()))


@pytest.fixture(scope="module")
def clean(shallow_golden) -> Calibration:
    """One round of one prompt by variants of every kind."""
    names = ["numpy", *(f"parity.device.variants:{name}" for name in DIFFERENT)]
    return calibrate(
        CalibrationRequest(
            golden=shallow_golden,
            device=lambda name: device(name, shallow_golden, "bfloat16"),
            names=names,
            policy=read_policy(None, "bfloat16"),
            runs=len(names) * len(MODES),
            rounds=1,
        )
    )


@by_night
def test_clean_variants_are_no_false_alarms(clean):
    assert clean.alarms == [] and clean.exit_code() == 0


def test_clean_variants_round_differently(clean):
    chained = {one.device: one.digest for one in clean.comparisons if one.mode == "chained"}
    assert len(set(chained.values())) == len(DIFFERENT) + 1, chained


def test_every_bounded_statistic_has_its_margin(clean, shallow_golden):
    family = clean.families["drafter.layers.{l}.ffn_out", "chained"]
    assert family.judged == (1 + len(DIFFERENT)) * shallow_golden.manifest.model.num_drafter_layers
    assert all(one.largest <= one.warn for one in family.margins.values())
    assert family.margins["l2"].largest > 0 and "ffn_out" in family.margins["l2"].stage


def test_a_cut_prompt_ends_where_a_device_with_its_budget_ends(shallow_golden):
    case = PromptSlice(shallow_golden, 1, 2).manifest.case
    whole = shallow_golden.manifest.case.prompts[1].generation
    assert case.prompts[0].generation.acceptance_length == whole.acceptance_length[:2]
    assert case.max_new_tokens == 1 + sum(whole.acceptance_length[:2])
    assert case.prompts[0].generation.emitted == whole.emitted[: case.max_new_tokens]


def test_a_cut_prompt_holds_the_tensors_of_its_own_number(small_golden):
    case = PromptSlice(small_golden, 1, 2)
    ours, theirs = (one.contents("float32", n, 2, "kv.target.3.k") for one, n in ((case, 0), (small_golden, 1)))
    assert (ours == theirs).all()
    assert case.stored("float32", 0, 3, "target.embed") is None


@pytest.mark.parametrize("rough", ["narrow_accumulator", "six_bit_taps"])
def test_a_device_that_rounds_too_often_is_an_alarm(rough, parity, shallow_golden, tmp_path):
    name, out = f"tests.calibrate.rough:{rough}", tmp_path / "found.json"
    options = ("--device", name, "--runs", 1, "--rounds", 1, "--strict", "--json", out)
    found = parity("calibrate", "--golden", shallow_golden.folder, *options)
    assert found.code == 1, found
    seen = json.loads(out.read_text())
    assert seen["alarms"] + seen["warned"] == 1 and f"{name}, local" in found.out, found.out


def test_a_clean_device_ends_with_0(parity, shallow_golden):
    found = parity("calibrate", "--golden", shallow_golden.folder, "--device", "numpy", "--runs", 1, "--rounds", 1)
    assert found.code == 0 and "0 false alarms and 0 warnings in 1 clean comparisons" in found.last, found


def test_a_clean_device_that_shows_a_part_is_no_false_alarm(parity, shallow_golden):
    named = "--golden", shallow_golden.folder, "--device", "numpy,show=layer-kernels"
    found = parity("calibrate", *named, "--runs", 1, "--rounds", 1)
    assert found.code == 0, found


@pytest.mark.parametrize(
    ("verdict", "strict", "code"),
    [("pass", True, 0), ("warn", False, 0), ("warn", True, 1), ("inconclusive", False, 1)],
)
def test_what_counts_as_a_false_alarm(verdict, strict, code):
    found = Calibration("", "", 1, [Comparison("numpy", "local", "a", verdict, "", None)])
    assert found.exit_code(strict) == code


def test_nothing_compared_is_inconclusive():
    assert Calibration("", "", 1).exit_code() == 3


def test_the_default_devices_are_every_engine_that_runs_here_and_every_variant(shallow_golden, quantised_golden):
    engines = [name for name, module in ENGINES.items() if import_module(module).absent(name) is None]
    variants = [f"parity.device.variants:{name}" for name in CLEAN]
    assert engines[0] == "numpy" and clean_devices(shallow_golden) == ((*engines, *variants), ())
    names, left_out = clean_devices(quantised_golden)
    assert [*names] == [name for name in (*engines, *variants) if name not in ("torch", "nkipy")]
    assert any("torch: its factory takes no kv_cache" in why for why in left_out)


def test_an_unknown_variant_is_wrong_usage(parity, shallow_golden):
    found = parity("calibrate", "--golden", shallow_golden.folder, "--device", "parity.device.variants:upside_down")
    assert found.code == 2 and "no clean variant upside_down" in found.err


def test_clean_devices_pass_gates_and_a_fault_is_an_alarm(shallow_golden, monkeypatch):
    """By day, of lifecycles, behind another prompt and with a prefix that is cached."""
    check, asked = Lives.check, ("the next prompt", "prefix hit")
    if not WHOLE:
        monkeypatch.setattr(Lives, "check", lambda *of: check(*of) if of[1] in asked else Check(of[1], "pass", ""))
    faulty, alone = (f"tests.calibrate.test_calibrate:{name}" for name in ("faulty_without_lanes", "without_lanes"))
    found = clean_gates(
        CleanGates(
            golden=shallow_golden,
            context=lambda part, name, folder: gate_context(part, name, "bfloat16", folder),
            names=[faulty, alone],
            gates=["lifecycle", "batch"],
            runs=4,
        )
    )
    assert [run.device for run in found.alarms] == [faulty] and "prefix hit" in found.alarms[0].said
    assert [(run.device, run.gate) for run in found.runs if not run.judged] == [(faulty, "batch"), (alone, "batch")]
    assert found.exit_code() == 1 and GateCalibration("golden").exit_code() == 3


def test_what_a_clean_device_emits_freely_is_no_alarm(shallow_golden):
    """Its golden was cut to some rounds once, and then contradicted its own budget."""
    found = clean_gates(
        CleanGates(
            golden=shallow_golden,
            context=lambda part, name, folder: gate_context(part, name, "bfloat16", folder),
            names=["numpy"],
            gates=["stages", "acceptance"],
            runs=2,
        )
    )
    assert not [run for run in found.alarms if run.verdict == "fail"]


def faulty_without_lanes(target, drafter, k, precision):
    return CATALOGUE["life-hit-drafter-unwritten"].factory(target, drafter, k, precision)


def without_lanes(target, drafter, k, precision):
    return load(target, drafter, k, precision)
