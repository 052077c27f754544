"""What checks come to and how gates say it, without a device: verdicts, counts, places, words."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from parity.compare.report import Place
from parity.errors import DeviceEnded, DeviceFailed, Inconclusive, NotShown, UsageError
from parity.gates import decisions, gate, provenance, stages
from parity.gates.gate import GATES, Check, GateReport, GateResult
from parity.golden.trust import Changes
from tests.gates.results import OUT, PLACE, result


@pytest.mark.parametrize(
    ("found", "verdict", "first"),
    [
        (result("pass", "warn", "warn"), "warn", "n1"),
        (result("pass", "inconclusive", "fail", "fail"), "fail", "n2"),
        (result("not judged", "pass"), "pass", "n1"),
        (result("not judged", "not judged"), "inconclusive", "n0"),
        (result("not judged", "not judged", undeclared=True), "not judged", "n0"),
        (result("not judged", "pass", undeclared=True), "pass", "n1"),
        (result(), "inconclusive", None),
    ],
)
def test_a_gate_is_as_bad_as_its_worst_check_and_names_the_first_of_these(found, verdict, first):
    assert found.verdict == verdict and (found.first and found.first.name) == first


def report(*results: GateResult, precision: str = "bfloat16", left_out=()) -> GateReport:
    return GateReport("numpy", precision, "golden", results, left_out)


@pytest.mark.parametrize(
    ("results", "left_out", "verdict", "code"),
    [
        ((result("pass"), result("warn")), (), "warn", 0), ((result("pass"), result("fail")), (), "fail", 1),
        ((result("not judged", undeclared=True), result("pass")), (), "pass", 0),
        ((result("not judged", undeclared=True),), (), "inconclusive", 3),
        ((result("pass"),), ("rounds",), "inconclusive", 3), ((result("fail"),), ("rounds",), "fail", 1),
        ((), (), "inconclusive", 3),
    ],
)  # fmt: skip
def test_a_report_is_as_bad_as_its_worst_gate_and_a_quick_look_never_passes(results, left_out, verdict, code):
    found = report(*results, left_out=left_out)
    assert (found.verdict, found.exit_code, found.quick) == (verdict, code, bool(left_out))
    told = found.to_dict()
    assert (told["verdict"], told["exit_code"], told["quick"]) == (verdict, code, bool(left_out))
    assert [one["verdict"] for one in told["results"]] == [one.verdict for one in results]


def test_a_report_says_which_gates_it_did_not_ask_and_what_bfloat16_alone_does_not_show():
    found = report(result("pass", name="verify"), result("pass", name="taps"))
    assert found.not_run == tuple(name for name in GATES if name not in ("verify", "taps"))
    assert len(found.unseen) == 1 and report(result("pass"), precision="float32").unseen == ()
    assert report(result("pass"), result("pass", "pass", exact=True)).unseen == ()


class Bench(SimpleNamespace):
    device_name, precision = "numpy", "bfloat16"


def bench(sampling=None) -> Bench:
    manifest = SimpleNamespace(case=SimpleNamespace(sampling=sampling))
    return Bench(golden=SimpleNamespace(folder="golden", manifest=manifest))


@pytest.fixture
def ran(monkeypatch):
    made: list = []
    monkeypatch.setattr(gate, "run_gate", lambda context, name: made.append(name) or result("pass", name=name))
    return made


def test_gates_run_in_the_order_asked_for_or_all_of_them(ran):
    told: list = []
    found = gate.run_gates(bench(), ("taps", "verify"), told.append)
    assert ran == ["taps", "verify"] and told == list(found.results) and found.golden == "golden"
    ran.clear()
    assert gate.run_gates(bench()).verdict == "pass" and ran == list(GATES)


def test_an_unknown_gate_or_one_of_greedy_decoding_on_sampled_tokens_is_refused(ran):
    with pytest.raises(UsageError, match=r"^--only nonsense: no such gate; there is provenance, stages, "):
        gate.run_gates(bench(), ("taps", "nonsense"))
    with pytest.raises(UsageError, match=r"^--only taps,nonsense: no such gate; there is provenance, "):
        gate.run_gates(bench(), ("taps,nonsense",))
    with pytest.raises(UsageError, match=r": --only is given once for each gate: --only taps --only verify$"):
        gate.run_gates(bench(), ("taps, verify",))
    with pytest.raises(UsageError, match=r"^golden samples: gate taps compares greedy decoding$"):
        gate.run_gates(bench("temperature=1"), ("stages", "taps"))
    assert ran == ["taps", "stages"]


@pytest.mark.parametrize(
    ("error", "verdict", "said", "undeclared"),
    [
        (NotShown("hidden"), "not judged", "hidden", True), (Inconclusive("no rows"), "inconclusive", "no rows", False),
        (DeviceEnded("numpy", "verify", "ended"), "inconclusive", "", False),
        (ZeroDivisionError("oh"), "inconclusive", "ZeroDivisionError", False),
    ],
)  # fmt: skip
def test_a_device_that_breaks_down_ends_a_gate_with_a_line(error, verdict, said, undeclared, monkeypatch):
    def checks(context):
        yield Check("one", "pass", "")
        raise error

    monkeypatch.setattr("parity.gates.verify.checks", checks)
    one, broken = gate.each_check(bench(), "verify")
    assert (one.name, broken.name, broken.verdict, broken.undeclared) == ("one", "verify", verdict, undeclared)
    assert said in broken.evidence
    monkeypatch.setattr("parity.gates.verify.checks", lambda context: (_ for _ in ()).throw(UsageError("no")))
    with pytest.raises(UsageError):
        list(gate.each_check(bench(), "verify"))


def stage(verdict: str, name: str = OUT, l2: float | None = None) -> SimpleNamespace:
    return SimpleNamespace(stage=name, verdict=verdict, x={} if l2 is None else {"l2": l2, "median": 1.0})


def compared(verdict, *results, precision="bfloat16", findings=(), first="", own=None, place=None) -> SimpleNamespace:
    return SimpleNamespace(
        verdict=verdict, stages=results, precision=precision, findings=findings, first_summary=first, own_experts=own,
        first=place,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (compared("pass", stage("pass", l2=0.5), stage("pass", "b", 0.75), stage("not judged", "c")),
         "worst relative L2 0.75 x noise, b"),
        (compared("pass", stage("pass", l2=1e-6), precision="float32"),
         f"worst relative L2 1e-06 of the golden's RMS, {OUT}"),
        (compared("pass", stage("pass")), "nothing to compare"),
        (compared("disputed", stage("disputed"), stage("fail"), stage("disputed")),
         "the references themselves disagree on 2 stages: parity corroborate tells which"),
        (compared("inconclusive", stage("inconclusive"), own="own experts"), "own experts"),
        (compared("fail", stage("fail"), own="own experts", first="there"), "1 stages do not pass; first at there"),
        (compared("fail", stage("pass"), stage("warn", "b"), stage("fail", "c"), findings=("x", "y"), first="there"),
         "2 stages do not pass; 2 structural findings; first at there"),
        (compared("fail", stage("pass"), findings=(SimpleNamespace(message="a finding"),)),
         "0 stages do not pass; 1 structural findings; first at a finding"),
        (compared("inconclusive", stage("not judged", "a"), stage("pass", "b"), stage("inconclusive", "c")),
         "1 stages do not pass; first at c"),
    ],
)  # fmt: skip
def test_a_comparison_is_told_in_a_line(told, line):
    assert stages._line(told) == line


def test_a_comparison_of_a_run_is_a_check_with_its_figures():
    told = compared("warn", stage("pass", l2=0.5), stage("warn", "b", 2.0), place=PLACE, first="there")
    found = stages.stage_check(SimpleNamespace(compared=lambda mode: told), "local")
    assert (found.name, found.verdict, found.place) == ("local, 2 stages", "warn", PLACE)
    assert found.figures == {
        "stages": {
            OUT: {"verdict": "pass", "l2": 0.5, "median": 1.0},
            "b": {"verdict": "warn", "l2": 2.0, "median": 1.0},
        }
    }


FINDINGS = [SimpleNamespace(message=f"finding {n}") for n in range(4)]


@pytest.mark.parametrize(
    ("compared_", "verdict", "said"),
    [
        (dict(compared=7), "pass", "7 alike"),
        (dict(), "not judged", "0 alike"),
        (dict(compared=7, unjudged=["one", "two"]), "pass", "one; two"),
        (dict(compared=7, silent=True), "inconclusive", "7 alike"),
        (dict(compared=7, findings=FINDINGS), "fail", "finding 0; finding 1; finding 2"),
        (dict(compared=7, set_aside=FINDINGS[3:], silent=True), "disputed", "finding 3"),
    ],
)
def test_constants_are_judged_by_what_is_found_said_or_silent(compared_, verdict, said, monkeypatch):
    made = SimpleNamespace(**dict(compared=0, findings=[], set_aside=[], unjudged=[], silent=False) | compared_)
    monkeypatch.setattr(stages, "check_constants", lambda golden, run: made)
    found = stages.constants_check(SimpleNamespace(golden=None, run=lambda mode: None))
    assert (found.verdict, found.evidence) == (verdict, said)
    assert found.figures == {"compared": made.compared, "unjudged": made.unjudged}


def test_who_broke_a_comparison_is_said():
    assert stages._broke(Inconclusive("no rows")) == "the comparison could not be made: Inconclusive: no rows"
    assert stages._broke(DeviceFailed("toy", "draft", "no")).startswith("the device breaks down: ")
    assert stages._broke(ZeroDivisionError("oh")).startswith("the device breaks down: ")


def exactly(offers="", reports=None):
    """float32 over prompt 2 of three."""

    def compare(view, mode):
        told = (reports or {}).get(mode, compared("pass", stage("pass", l2=0.5)))
        if isinstance(told, Exception):
            raise told
        return told

    def offered(precision):
        if isinstance(offers, Exception):
            raise offers
        return offers

    prompts = [SimpleNamespace(id=f"p{n}") for n in range(3)]
    golden = SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(prompts=prompts)))
    return SimpleNamespace(golden=golden, offers=offered, compared_exactly=compare)


@pytest.fixture
def told_by(monkeypatch):
    monkeypatch.setattr(stages, "_telling", lambda golden: ([2, 0], None))


def test_float32_is_judged_in_both_modes_and_places_are_the_goldens(told_by):
    broken = {"local": compared("fail", stage("fail"), first="there", place=Place(OUT, 0, 1, 2, 3))}
    local, chained = stages.float32_checks(exactly(reports=broken))
    assert (local.name, local.verdict, local.place) == (
        "float32 local, prompt p2 and p0, 1 stages", "fail", Place(OUT, 0, 0, 2, 3),
    )  # fmt: skip
    assert (chained.name, chained.verdict, chained.place) == (
        "float32 chained, prompt p2 and p0, 1 stages",
        "pass",
        None,
    )
    assert local.exact and chained.exact


def test_float32_that_is_refused_or_breaks_is_said(told_by):
    (one,) = stages.float32_checks(exactly("it has none"))
    assert (one.name, one.verdict, one.evidence) == ("float32", "not judged", "not judged in float32: it has none")
    (one,) = stages.float32_checks(exactly(ZeroDivisionError("oh")))
    assert one.verdict == "inconclusive" and one.evidence.startswith("asked for float32, the device breaks down: ")
    with pytest.raises(UsageError):
        list(stages.float32_checks(exactly(UsageError("no"))))
    local, chained = stages.float32_checks(exactly(reports={"local": Inconclusive("no rows")}))
    assert (local.name, local.verdict) == ("float32 local", "inconclusive") and chained.verdict == "pass"
    assert local.evidence == "in float32 the comparison could not be made: Inconclusive: no rows" and not local.exact


@pytest.mark.parametrize(
    ("lengths", "drafting", "numbers", "cut"),
    [
        ([3, 9, 5], [1, 2], [1], (1, 3)),
        ([3, 9, 5], [2, 0], [1, 2], None),  # nothing is drafted in the longest one: the next longest that drafts
        ([3, 9, 5], [0], [1, 0], None),
        ([3, 9, 5], [], [1], (1, 3)),
    ],
)
def test_the_longest_prompt_is_judged_in_float32_and_one_in_which_something_is_drafted(
    lengths, drafting, numbers, cut, monkeypatch
):
    prompts = [SimpleNamespace(ids=(1,) * length) for length in lengths]
    row = lambda n: SimpleNamespace(full_shape=(n,))  # noqa: E731
    rows = {("float32", n, 1, "drafter.draft_tokens"): row(int(n in drafting)) for n in range(3)}
    rows |= {("bfloat16", n, 1, "drafter.draft_tokens"): row(1) for n in range(3)}
    rows |= {("float32", n, 1, "verify.tokens"): row(1) for n in range(3)}
    golden = SimpleNamespace(
        manifest=SimpleNamespace(case=SimpleNamespace(prompts=prompts, max_new_tokens=8)), rows=rows
    )
    monkeypatch.setattr(stages, "GoldenSlice", lambda golden_, number, rounds, budget=0: SimpleNamespace(
        of=(number, rounds), rows={(v, 0, r, s): one for (v, n, r, s), one in rows.items() if n == number}
    ))  # fmt: skip
    monkeypatch.setattr(stages, "JoinedGoldens", lambda parts: [part.of for part in parts])
    found, view = stages._telling(golden)
    assert found == numbers and (view.of == cut if cut else view == [(number, 8) for number in numbers])


@pytest.mark.parametrize(
    ("changed", "verdict", "said"),
    [
        (Changes((), (), ()), "pass", "both checkpoints, tokenizer, chat template and 2 source files"),
        (Changes(("the target's config",), ("a.py",), ("unknown",)), "fail",
         "the target's config, a.py changed since noon; `parity dump-golden` makes a new one"),
        (Changes((), (), ("one is not here", "another")), "inconclusive", "one is not here; another"),
    ],
)  # fmt: skip
def test_what_changed_behind_a_golden_is_enumerated(changed, verdict, said, monkeypatch):
    monkeypatch.setattr(provenance, "changes", lambda golden: changed)
    manifest = SimpleNamespace(created="noon", producer=SimpleNamespace(sources={"a": 1, "b": 2}))
    found = provenance.unchanged(SimpleNamespace(golden=SimpleNamespace(manifest=manifest)))
    assert (found.verdict, found.evidence) == (verdict, said)
    assert found.figures == {"checkpoints": changed.checkpoints, "sources": changed.sources, "unknown": changed.unknown}


@pytest.mark.parametrize(
    ("golden", "sources", "common", "verdict", "said"),
    [
        (("a", "b"), {"c": 1}, (), "pass", "none in common of 2 modules behind the golden and 1 behind the device"),
        ((), {"c": 1}, (), "inconclusive", "the golden does not say which source it is made of"),
        (("a",), {}, (), "inconclusive", "the device does not say which source it is made of"),
        (("a",), {"a": 1}, ("a", "b"), "fail", "a, b: such a golden cannot judge this device"),
    ],
)
def test_a_golden_and_a_device_of_one_source_are_refused(golden, sources, common, verdict, said, monkeypatch):
    monkeypatch.setattr(provenance, "device_modules", lambda *of: ())
    monkeypatch.setattr(provenance, "producer", lambda *of: SimpleNamespace(modules=("c",), sources=sources))
    monkeypatch.setattr(provenance, "shared", lambda *of: common)
    device = SimpleNamespace(describe=lambda: SimpleNamespace(name="toy", modules=()))
    manifest = SimpleNamespace(producer=SimpleNamespace(modules=golden))
    context = SimpleNamespace(
        golden=SimpleNamespace(manifest=manifest), device=lambda: device, device_name="toy"
    )  # fmt: skip
    found = provenance.independent(context)
    assert (found.verdict, found.evidence) == (verdict, said) and found.figures["golden"] == golden


@pytest.fixture
def decided(monkeypatch):
    """The decisions gate over made-up rows."""

    def run(same=(True, True, True), forced=decisions.FORCED, family="p-eagle", looping=False):
        monkeypatch.setattr(decisions, "refuse_shared", lambda *of: None)
        monkeypatch.setattr(decisions, "read_draft_vocabulary", lambda golden: "vocabulary")
        names = {"target.tokens": 0, "verify.tokens": 1, "drafter.draft_tokens": 2}
        monkeypatch.setattr(decisions, "judge_rows", lambda on, run_, stage_, vocabulary: same[names[stage_]])
        monkeypatch.setattr(decisions, "_same", lambda rows: rows)
        monkeypatch.setattr(decisions, "_group", lambda *of: of)
        monkeypatch.setattr(decisions, "own_choices", lambda *of: "own")
        monkeypatch.setattr(decisions, "planted_ties", lambda context, vocabulary, due: ("ties", due))
        monkeypatch.setattr(decisions, "Looping", dict if looping else list)
        manifest = SimpleNamespace(producer=None, model=SimpleNamespace(family=family))
        case = SimpleNamespace(forced=forced, precision="bfloat16")
        run_ = SimpleNamespace(manifest=SimpleNamespace(producer=None, case=case))
        context = SimpleNamespace(
            golden=SimpleNamespace(manifest=manifest), run=lambda mode: run_, basis=lambda mode: None, device=dict
        )
        return list(decisions.checks(context))

    return run


def test_every_group_is_judged_and_what_was_not_forced_matters_where_something_differs(decided):
    every = decided()
    assert [one[0] for one in every[:3]] == ["target", "verify", "drafter"] and every[3] == "own"
    assert every[4] == ("ties", ["target.tokens", "verify.tokens", "drafter.draft_tokens"])
    assert {(tuple(one[3]), one[4]) for one in every[:3]} == {((), False)}
    assert {tuple(one[3]) for one in decided(forced=decisions.FORCED[1:])[:3]} == {()}  # nothing differs
    free = decided(same=(True, False, True), forced=decisions.FORCED[1:])[:3]
    assert {tuple(one[3]) for one in free} == {("target.tokens",)}
    looped = decided(forced=decisions.FORCED[1:], looping=True)[:3]
    assert {(tuple(one[3]), one[4]) for one in looped} == {(("target.tokens",), True)}


def test_a_drafter_without_logits_is_not_judged_and_its_group_is_left_out(decided):
    drafter, target, verify, own, ties = decided(family="n-gram", forced=decisions.FORCED[1:])
    assert (drafter.name, drafter.verdict) == ("drafter", "not judged") and "has no logits" in drafter.evidence
    assert (target[0], verify[0], own, ties) == (
        "target",
        "verify",
        "own",
        ("ties", ["target.tokens", "verify.tokens"]),
    )
    assert tuple(target[3]) == ("target.tokens",)
