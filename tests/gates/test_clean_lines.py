"""False alarms of gates, by hand: what counts as one, which prompts go together, and what is said of a run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from parity.gates import clean
from parity.gates.clean import CleanGates, GateCalibration, GateRun, clean_gates
from parity.gates.gate import Check


def ran(verdict: str, judged: int = 1) -> GateRun:
    return GateRun("taps", "numpy", ("p",), 3, judged, verdict)


RUNS = [ran(word) for word in ("pass", "warn", "fail", "inconclusive")] + [ran("not judged", 0)]


def test_failures_and_doubt_are_alarms_and_warnings_are_told_apart():
    found = GateCalibration("g", RUNS)
    assert (found.judged, found.alarms, found.warned) == (RUNS[:4], RUNS[2:4], RUNS[1:2])
    told = found.to_dict()
    assert (told["golden"], told["judged"], told["alarms"], told["warned"], len(told["runs"])) == ("g", 4, 2, 1, 5)


@pytest.mark.parametrize(
    ("runs", "code", "strict"),
    [
        (RUNS[:1], 0, 0), (RUNS[:2], 0, 1), (RUNS[2:3], 1, 1), (RUNS[3:4], 1, 1), (RUNS[4:], 3, 3), ([], 3, 3),
        (RUNS, 1, 1), ([ran("fail", 0)], 3, 3),
    ],
)  # fmt: skip
def test_any_alarm_is_1_a_warning_only_if_strict_and_nothing_judged_is_3(runs, code, strict):
    found = GateCalibration("g", runs)
    assert (found.exit_code(), found.exit_code(strict=True)) == (code, strict)


@pytest.fixture
def calibrate(monkeypatch):
    """Run two gates over two devices of a golden of so many prompts; the checks are those that are given."""
    monkeypatch.setattr(clean, "GoldenSlice", lambda golden, number, rounds, budget: (number, rounds, budget))

    def joined(slices):
        assert all(rounds == number + 2 and budget == 7 for number, rounds, budget in slices)
        prompts = [SimpleNamespace(id=f"p{number}") for number, *_ in slices]
        return SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(prompts=prompts)))

    monkeypatch.setattr(clean, "JoinedGoldens", joined)
    told = []

    def run(prompts: int, runs: int, *checks: Check):
        monkeypatch.setattr(clean, "run_gate", lambda context, gate: SimpleNamespace(checks=checks))
        told.clear()
        texts = [SimpleNamespace(generated=SimpleNamespace(acceptance_length=(1,) * (n + 2))) for n in range(prompts)]
        case = SimpleNamespace(prompts=texts, max_new_tokens=7)
        golden = SimpleNamespace(folder="g", manifest=SimpleNamespace(case=case))
        request = CleanGates(
            golden, lambda *of: of, ("d1", "d2"), ("taps", "batch"), runs, lambda *said: told.append(said)
        )
        return clean_gates(request).runs, told

    return run


def test_every_prompt_leads_three_and_all_gates_are_asked_before_the_next(calibrate):
    runs, told = calibrate(4, 99)
    assert [one.prompts for one in runs[::4]] == [
        ("p0", "p1", "p2"), ("p1", "p2", "p3"), ("p2", "p3", "p0"), ("p3", "p0", "p1"),
    ]  # fmt: skip
    assert [(one.device, one.gate) for one in runs[:4]] == [
        ("d1", "taps"), ("d1", "batch"), ("d2", "taps"), ("d2", "batch"),
    ]  # fmt: skip
    assert len(runs) == 16 and told[0] == (0, 16, "taps d1 p0, p1, p2") and told[-1] == (16, 16, "")


def test_no_more_runs_are_made_than_asked_for_and_of_two_prompts_both(calibrate):
    runs, told = calibrate(2, 5)
    assert [one.prompts for one in runs] == [("p0", "p1")] * 4 + [("p1", "p0")]
    assert [said[:2] for said in told] == [(0, 5), (1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]


PASSED, UNASKED = Check("a", "pass", "fine"), Check("b", "not judged", "no lanes")


@pytest.mark.parametrize(
    ("checks", "due"),
    [
        ((PASSED, UNASKED), (2, 1, "pass", "")),
        ((UNASKED,), (1, 0, "not judged", "")),
        ((PASSED, Check("c", "warn", "near"), Check("d", "fail", "off")), (3, 3, "fail", "c: near")),
        ((UNASKED, Check("d", "inconclusive", "unseen"), PASSED), (3, 2, "inconclusive", "d: unseen")),
        ((Check("d", "fail", "off"), UNASKED), (2, 1, "fail", "d: off")),
    ],
)
def test_a_run_is_its_worst_judged_check_and_says_the_first_that_does_not_pass(calibrate, checks, due):
    run = calibrate(1, 1, *checks)[0][0]
    assert (run.checks, run.judged, run.verdict, run.said) == due
