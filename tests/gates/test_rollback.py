"""The rollback gate: passes on clean devices, and each planted fault turns the check red that names it."""

from __future__ import annotations

import re
from importlib import import_module

import pytest
from hypothesis.configuration import set_hypothesis_home_dir

from parity.builders import builder
from parity.gates import run_gate
from parity.gates.context import GateContext
from parity.gates.rollback.history import RoundPlan, SequencePlan
from tests.sample import WHOLE, by_night, first, sample

REPEATS, ROWS, STATE, POISON, ERRORS, REPEATS_TOO, EXACT = range(7)
EXPLORE = import_module("parity.gates.rollback.explore")  # by module: the package's own `explore` is the function
PLAIN = (SequencePlan(0, 9, (RoundPlan(0, 4),)),)


FAULTS, OTHERS = "parity.device.faults:", "tests.gates.cache_faults:"
CASES = 25
"""Histories that are always played: of one and of two rounds, and every disturbance once. More are drawn at random."""


@pytest.fixture(autouse=True)
def asked_twice_more(monkeypatch):
    """A device that first repeated itself, and did not later, is asked twice more instead of twelve times."""
    if not WHOLE:
        monkeypatch.setattr("parity.gates.rollback.repeat.MORE", 8)


@pytest.fixture
def gate(shallow_golden, tmp_path):
    """The rollback gate over a device; the plain cases show every fault here, none needs more histories."""

    def run(device: str, precision: str = "float32", histories: int = 1, **options):
        context = GateContext(
            shallow_golden, device, builder(device, shallow_golden), precision, tmp_path, histories, **options
        )
        return run_gate(context, "rollback")

    return run


@pytest.fixture
def only(monkeypatch):
    """The gate plays one undisturbed history, and of the others those that disturb what a check is of; given nothing,
    those of one round and every kind of disturbance once."""

    def keep(check: int | None = None) -> None:
        if WHOLE and check is None:
            return
        shown = {
            POISON: lambda one: one.poison is not None,
            ERRORS: lambda one: one.error or one.rehearsed,
            REPEATS: lambda one: False,
            None: lambda one: one.poison is not None or (one.error and one.error.where == 999),
        }[check]
        kept = lambda case: any(map(shown, case[0].rounds)) or (check is None and len(case[0].rounds) == 1)  # noqa: E731
        monkeypatch.setattr(EXPLORE, "_cases", lambda *of: [PLAIN, *filter(kept, cases(*of))])

    cases = EXPLORE._cases
    return keep


CLEAN = (("numpy", "bfloat16"), *((("parity.references.seam:load", "float32"),) if WHOLE else ()))


@pytest.mark.parametrize(("device", "precision"), CLEAN)
def test_clean_devices_pass(device, precision, gate):
    result = gate(device, precision, histories=CASES + 4)
    assert [check.verdict for check in result.checks] == ["pass"] * (7 if precision == "bfloat16" else 5), result
    assert "the same bits" in result.checks[REPEATS].evidence
    assert re.search(rf"^{CASES + 4} histories, .* accepted 0, 1, 2, 3, 4 of 4; ", result.checks[ROWS].evidence)


@pytest.mark.parametrize(
    ("fault", "check", "shows"),
    sample(
        [
            (FAULTS + "rollback_wrong_axis", ROWS, r"accept \d of 4 → kv\.drafter\.0\.[kv] row \d+ changed"),
            (FAULTS + "rollback_target_noop", ROWS, r"kv\.target\.length is \d+, not \d+"),
            (FAULTS + "rollback_target_too_far", ROWS, r"kv\.target\.length is \d+, not \d+"),
            (FAULTS + "rollback_reset", ROWS, r"kv\.drafter\.length is 0, not \d+"),
            (FAULTS + "commit_stale_placeholder", STATE, r"drafter\.\S+ row \d+ is .* off the never-speculated one"),
            (OTHERS + "drafts_one_fewer", ROWS, r"draft gave 3 drafts, not 4"),
            (OTHERS + "commit_window_ring", ROWS, r"kv\.target\.0\.k row \d+ changed"),
            (OTHERS + "reads_dead_values", POISON, r"poison nan; .*→ .* differs when (draft|verify) is called again"),
            (FAULTS + "attn_mask_one_ahead", STATE, r"never"),
            (OTHERS + "error_loses_state", ERRORS, r"error in (prefill|commit)"),
            (OTHERS + "error_loses_taps", ERRORS, r"error in verify|rehearse"),
            (OTHERS + "swallows_errors", ERRORS, r"commit continues after its tap raised"),
        ],
        lambda row: row[0],
        lambda row: row[1],
    ),
)
def test_a_planted_fault_turns_its_check_red(fault, check, shows, gate, only):
    if check in (POISON, ERRORS) and not WHOLE:
        only(check)
    result = gate(fault)
    assert result.verdict == "fail"
    failed = [number for number, one in enumerate(result.checks) if one.verdict == "fail"]
    assert failed == [check], [one.evidence for one in result.checks]
    assert re.search(shows, result.checks[check].evidence), result.checks[check].evidence
    assert result.checks[check].place is not None


@by_night
def test_a_fault_that_only_bits_show_is_found_in_the_bench_precision(gate, only, monkeypatch):
    from tests.gates import cache_faults

    only()

    def only_bfloat16(precision, **options):
        make = cache_faults.reads_dead_values if precision == "bfloat16" else cache_faults.device.load
        return make(precision=precision, **options)

    monkeypatch.setattr(cache_faults, "only_bfloat16", only_bfloat16, raising=False)
    result = gate("tests.gates.cache_faults:only_bfloat16", "bfloat16")
    assert [check.verdict for check in result.checks] == ["pass"] * 6 + ["fail"], result
    assert "poison nan" in result.checks[EXACT].evidence


@by_night
def test_a_device_that_sums_in_random_order_passes_and_is_named_as_that(gate, only):
    only()
    result = gate("tests.gates.restless:restless", "bfloat16")
    assert [check.verdict for check in result.checks] == ["pass"] * 7, result
    for check in (REPEATS, REPEATS_TOO):
        assert re.search(
            r"it does not: \d+ of \d+ tensors .* first at target.layers.0.(attn_in|q);", result.checks[check].evidence
        )
    assert (
        "ULP (bound 256)" in result.checks[REPEATS].evidence
        and "x noise (bound 3)" in result.checks[REPEATS_TOO].evidence
    )
    assert "within noise" in result.checks[ERRORS].evidence and "within noise" in result.checks[EXACT].evidence


@pytest.mark.parametrize(
    ("fault", "check"), first([("wild", REPEATS), ("error_loses_state", ERRORS), ("reads_dead_values", POISON)])
)
def test_a_fault_of_such_a_device_still_fails(fault, check, gate, only):
    only(check)
    result = gate(f"tests.gates.restless:{fault}")
    assert result.checks[check].verdict == "fail", result
    assert fault == "wild" or result.checks[REPEATS].verdict == "pass"


@by_night
def test_a_device_whose_first_repetitions_are_alike_is_asked_again_before_its_recovery_is_blamed(gate, only):
    only()
    result = gate("tests.gates.restless:late")
    assert result.verdict == "pass" and "it does not: " in result.checks[REPEATS].evidence, result


@pytest.mark.parametrize("verb", ["verify", "draft"])
def test_a_device_that_fails_in_a_round_fails_with_its_history(verb, gate):
    result = gate(f"tests.gates.cache_faults:fails_in_{verb}")
    assert result.verdict == "fail" and result.first is result.checks[ROWS], result
    assert (
        re.search(rf"{verb} raised IndexError.*cache_faults\.py:\d+", result.first.evidence)
        and result.first.figures["history"]
    )
    assert result.checks[REPEATS].verdict == "inconclusive" and "could not be asked" in result.checks[REPEATS].evidence


def test_what_was_not_seen_is_no_pass(gate, only):
    only()
    without = gate("tests.gates.cache_faults:unpoisonable")
    assert [check.verdict for check in without.checks] == ["pass", "pass", "pass", "inconclusive", "pass"]
    assert "poison" in without.checks[POISON].evidence
    silent = gate("tests.gates.cache_faults:silent_caches")
    assert silent.verdict == "inconclusive"
    assert "hands over no kv.target.0.k" in silent.checks[0].evidence


def test_an_exploration_that_missed_a_case_is_no_pass(gate, monkeypatch):
    monkeypatch.setattr(EXPLORE, "_cases", lambda *_: [PLAIN])
    few = gate("numpy", histories=1)
    assert [check.verdict for check in few.checks] == ["pass", "inconclusive", "pass", "inconclusive", "inconclusive"]
    assert "no round accepted 1, 2, 3, 4 of 4" in few.checks[ROWS].evidence


@by_night
def test_the_same_seed_explores_the_same_histories_and_leaves_nothing_on_disk(gate, tmp_path, request, monkeypatch):
    request.addfinalizer(lambda: set_hypothesis_home_dir(None))
    set_hypothesis_home_dir(tmp_path / "home")
    monkeypatch.setattr(EXPLORE, "_cases", lambda *_: [PLAIN])
    first, again, other = (gate("numpy", histories=3, seed=seed) for seed in (3, 3, 4))
    assert first.checks == again.checks
    assert first.checks[ROWS].figures != other.checks[ROWS].figures
    assert not (tmp_path / "home").exists()
