"""A quick look fails a device or says that it does not pass: in its exit code, its last line and its JSON."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from parity.api import gate_device
from parity.compare.report import FAIL, PASS
from parity.errors import UsageError
from parity.gates import quick
from parity.gates.gate import GATES, Check, GateReport, GateResult
from parity.gates.quick import QUICK_GATES, ROUNDS
from parity.golden.trust import trusted
from parity.reports.gates import print_gates


@pytest.fixture
def gates_say(monkeypatch):
    """Every gate gives these verdicts, in order; what was asked of them."""
    asked = {}

    def say(*verdicts: str):
        def run(context, names=(), done=lambda result: None):
            asked.update(names=names, case=context.golden.manifest.case, histories=context.histories)
            results = [
                GateResult(name, (Check("asked", word, ""),)) for name, word in zip(names, verdicts, strict=False)
            ]
            return GateReport(context.device_name, context.precision, str(context.golden.folder), tuple(results))

        monkeypatch.setattr("parity.gates.run_gates", run)
        return asked

    return say


def test_a_quick_look_in_which_nothing_fails_is_no_pass(gates_say, shallow_golden, parity, tmp_path):
    asked = gates_say(*[PASS] * len(QUICK_GATES))
    ended = parity("gate", "--quick", "--golden", shallow_golden.folder, "--json", tmp_path / "quick.json")
    last = ended.out.strip().splitlines()[-1]
    assert ended.code == 3 and last.startswith("quick verdict: inconclusive") and "parity gate --golden" in last, ended
    told = json.loads((tmp_path / "quick.json").read_text())
    assert told["quick"] is True and told["verdict"] == "inconclusive" and told["exit_code"] == 3
    assert all(any(name in said for said in told["left_out"]) for name in set(GATES) - set(QUICK_GATES))
    assert asked["names"] == QUICK_GATES and len(asked["case"].prompts) == 1
    assert len(asked["case"].prompts[0].generation.acceptance_length) <= ROUNDS
    assert len(asked["case"].prompts[0].ids) == max(len(prompt.ids) for prompt in shallow_golden.manifest.case.prompts)


def test_a_quick_look_that_fails_fails(gates_say, shallow_golden, parity):
    gates_say(PASS, FAIL)
    ended = parity("gate", "--quick", "--golden", shallow_golden.folder)
    assert ended.code == 1 and "quick verdict: fail" in ended.out


@pytest.mark.parametrize("chosen", ["only", "run"])
def test_a_quick_look_chooses_for_itself(chosen, shallow_golden):
    given = {"only": ("taps",)} if chosen == "only" else {"run": shallow_golden}
    with pytest.raises(UsageError, match="a quick look chooses its gates and makes its own short runs"):
        gate_device(trusted(shallow_golden), quick=True, **given)


def test_a_pass_of_some_gates_says_which_were_not_run(capsys):
    """One of fourteen passed, and the last line was that of all of them."""
    passed = [GateResult(name, (Check("asked", "pass", "yes"),)) for name in GATES]
    some, all_ = GateReport("numpy", "float32", "", tuple(passed[2:])), GateReport("numpy", "float32", "", (*passed,))
    print_gates(some)
    print_gates(all_)
    first, last = capsys.readouterr().out.splitlines()
    assert first == "gates verdict: pass; not run: provenance, stages: no verdict on the device"
    assert last == "gates verdict: pass"
    assert some.to_dict()["not_run"] == ("provenance", "stages") and all_.to_dict()["not_run"] == ()


def test_a_gate_that_judged_nothing_says_what_it_would_have(capsys):
    """Its name stood there with nothing behind it, in a night with "no check"."""
    unjudged = GateResult("boundary", (Check("admission", "not judged", "its factory takes no max_positions"),))
    assert unjudged.verdict == "inconclusive"
    print_gates(GateReport("numpy", "float32", "", (unjudged,)))
    assert "gates verdict: inconclusive; boundary: admission; reproduce" in capsys.readouterr().out


@pytest.mark.parametrize(("lengths", "asked"), [((4, 9, 9), 1), ((7, 3, 2), 0), ((2, 3, 5), 2), ((5, 6), 1), ((4,), 0)])
def test_what_a_quick_look_leaves_out_is_told_word_by_word(lengths, asked, monkeypatch):
    """The longest prompt is asked, of two as long the first; of a single prompt none is left out."""
    monkeypatch.setattr(quick, "GoldenSlice", lambda *cut: cut)
    prompts = [SimpleNamespace(id=f"p{number}", ids=(0,) * length) for number, length in enumerate(lengths)]
    golden = SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(prompts=prompts)))
    looked = quick.quick_look(golden, 30)
    assert looked.golden == (golden, asked, 4)
    count = len(lengths)
    rest = f"{count - 1} of {count} prompts: asked is {asked} (p{asked}) alone, as number 0"
    gates, *others = looked.left_out
    assert others == [
        *[rest] * (count > 1),
        "rounds behind the first 4",
        "all but the plainest of 30 accept/reject histories",
    ]
    assert set(gates.removeprefix("the gates ").split(", ")) == set(GATES) - set(QUICK_GATES)
