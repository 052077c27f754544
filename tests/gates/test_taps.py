"""The taps gate: green on the clean device, red on taps of another layer, row or branch, and on shifted pairs."""

from __future__ import annotations

import pytest

from parity.builders import builder
from parity.gates import run_gate
from parity.gates.context import GateContext
from parity.gates.taps import tapped_streams
from parity.golden.store import Dump
from parity.golden.trust import trusted
from parity.golden.views import GoldenSlice
from tests.sample import WHOLE, by_night, sample

IN_OF = ["target.layers.1.out", "target.layers.3.out", "target.layers.4.out"]


@pytest.fixture(scope="module")
def golden(small_golden):
    """One of its prompts; by night both."""
    if WHOLE:
        return small_golden
    case = small_golden.manifest.case
    rounds = len(case.prompts[0].generation.acceptance_length)
    return GoldenSlice(trusted(small_golden), 0, rounds, case.max_new_tokens)


@pytest.fixture
def gate(golden, tmp_path):
    """The gate's two checks on a device."""

    def run(device: str = "numpy", golden: Dump = golden):
        context = GateContext(golden, device, builder(device, golden), "bfloat16", tmp_path)
        return run_gate(context, "taps").checks

    return run


def test_the_clean_device_passes_on_every_row_and_round(gate, golden):
    taken, paired = gate()
    rounds = sum(1 + len(prompt.generation.acceptance_length) for prompt in golden.manifest.case.prompts)
    assert (taken.verdict, paired.verdict) == ("pass", "pass")
    assert taken.figures["in_of"] == [2, 4, 5] and taken.figures["rounds"] == rounds and taken.figures["wrong"] == 0
    assert "in_of [2, 4, 5] = out_of [1, 3, 4]" in taken.name


def test_the_tapped_streams_are_found_in_the_golden_alone(small_golden):
    assert tapped_streams(small_golden) == IN_OF


@pytest.mark.parametrize(
    ("device", "what"),
    sample(
        [
            ("parity.device.faults:tap_off_by_one", "it is target.layers.2.out"),
            ("parity.device.faults:tap_without_residual", "it is target.layers.1.ffn_out"),
            ("parity.device.faults:tap_order", "it is target.layers.4.out"),
            ("parity.device.faults:input_hidden_one_step_late", "it is target.layers.1.out of the position after"),
        ],
        lambda row: row[0],
    ),
)
def test_other_taps_are_red_and_named(device, what, gate):
    taken, paired = gate(device)
    assert taken.verdict == "fail" and what in taken.evidence
    assert taken.place.stage == "drafter.taps" and (taken.place.round, taken.place.position) == (0, 0)
    assert paired.verdict == "fail" and "row 0" in paired.evidence


def test_taps_that_are_late_after_an_accepted_draft_only_are_red_in_that_round(gate):
    taken, paired = gate("tests.gates.choice_faults:late_after_an_accept")
    assert taken.verdict == "fail" and taken.place.round > 1 and "of the position after" in taken.evidence
    assert paired.verdict == "pass"


@pytest.mark.parametrize(
    ("device", "what"),
    sample(
        [("input_no_shift", "carries token"), ("input_position_plus_one", "sits at position 1, not 0")],
        lambda row: row[0],
    ),
)
def test_a_shifted_pair_is_red(device, what, gate):
    taken, paired = gate(f"parity.device.faults:{device}")
    assert taken.verdict == "pass"
    assert paired.verdict == "fail" and what in paired.evidence and paired.place.stage == "drafter.input_ids"


@by_night
def test_a_golden_without_its_streams_is_inconclusive(gate, remake_small_golden, tmp_path):
    checks = gate(golden=remake_small_golden(tmp_path / "golden", stages=("taps", "logits"), max_new_tokens=4))
    assert [check.verdict for check in checks] == ["inconclusive"] and "without --stage" in checks[0].evidence


def test_a_chunk_that_two_streams_equal_is_inconclusive(gate, small_golden, monkeypatch):
    stored = Dump.stored

    def twins(dump, variant, prompt, round_, stage):
        same = dump.manifest.kind == "golden" and stage == "target.layers.5.out"
        return stored(dump, variant, prompt, round_, "target.layers.4.out" if same else stage)

    monkeypatch.setattr(Dump, "stored", twins)
    (check,) = gate()
    assert check.verdict == "inconclusive" and "target.layers.4.out or target.layers.5.out" in check.evidence
