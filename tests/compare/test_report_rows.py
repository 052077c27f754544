"""Reports by hand: what a comparison is titled, where it first diverges, whose error it is and what is disputed."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare import places
from parity.compare.places import attest, doubted_sides, excess, in_doubt, mark, multiple, where, witnesses
from parity.compare.report import Acceptance, AcceptanceMeans, Place, Report, StageResult
from parity.compare.rows import StageRows
from parity.compare.structure import Finding
from parity.stages import declared

NAMES = declared(2, 1)
Q, OUT, LOGITS, TOKENS = "target.layers.0.q", "target.layers.1.out", "target.logits", "target.tokens"


def result(stage: str = Q, verdict: str = "pass", **more) -> StageResult:
    named = NAMES[stage]
    made = dict(stage=stage, family=named.stage.template, layer=named.layer, judge="noise", verdict=verdict, reason="",
                rows=20)  # fmt: skip
    return StageResult(**made | more)


def report(*results: StageResult, verdict: str = "pass", **more) -> Report:
    acceptance = Acceptance(AcceptanceMeans(1, 1, 1), None, None, 1)
    made = dict(device="numpy", precision="bfloat16", mode="local", policy="", golden="", run="", stages=results,
                findings=(), acceptance=acceptance, first=None, verdict=verdict, reproduce="")  # fmt: skip
    return Report(**made | more)


PLACE, LATER = Place(Q, 0, 1, 2, 3), Place(Q, 0, 1, 2, 9)


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (result(), ""),
        (result(first=PLACE, worst=PLACE), ""),
        (result(first=PLACE, worst=PLACE, bad_rows=1, relation="row 0 only"), "1 of 20 rows: row 0 only"),
        (
            result(first=PLACE, worst=Place(Q, 0, 1, 2, 9), bad_rows=3),
            "worst at prompt 1, round 2, position 9, 3 of 20 rows",
        ),
        (
            result(first=PLACE, worst=Place(Q, 0, 1, 2, 9), relation="all"),
            "worst at prompt 1, round 2, position 9: all",
        ),
    ],
)
def test_rows_beside_the_first_are_summed_up(one, said):
    assert one.rows_summary == said


def test_a_report_is_titled_by_what_it_judges():
    assert report().title == "local verdict: pass"
    assert (
        report(unasked=3).title
        == "local verdict: pass; 3 stages not compared (outside --stage): no verdict on the device"
    )
    assert report(beside="other").title.startswith(
        "local verdict: pass; of the difference of two devices, not of either: "
    )
    title = report(layers="0, 1", outside=5, unasked=3).title
    assert title.startswith("local verdict of target layers 0, 1 alone: pass; 5 stages not judged (")
    assert title.endswith("): no verdict on the device")


def test_a_warning_fails_a_strict_report():
    codes = [(verdict, strict, report(verdict=verdict, strict=strict).exit_code) for verdict, strict in (
        ("warn", False), ("warn", True), ("pass", True), ("fail", False), ("inconclusive", True), ("disputed", False),
    )]  # fmt: skip
    assert [code for *_, code in codes] == [0, 1, 0, 1, 3, 3]
    assert report(verdict="fail").to_dict()["exit_code"] == 1


def test_the_first_divergent_place_is_told_with_its_stages_rows_and_a_doubt_before_it():
    assert report().first_summary == "" and report().first_stage is None and report().in_doubt == ""
    bad = result(verdict="fail", first=PLACE, worst=PLACE, bad_rows=2, marks=("own",))
    assert report(bad, first=PLACE).first_summary == f"{Q}, prompt 1, round 2, position 3 (2 of 20 rows)"
    other = Place(LOGITS, None, 0, 0)
    assert report(bad, first=other).first_summary == f"{LOGITS}, prompt 0, round 0"
    open_ = result("target.embed", "inconclusive")
    inherited = replace(bad, marks=("inherited",))
    found = report(open_, inherited, first=PLACE)
    assert found.in_doubt == "target.embed"
    assert found.first_summary.endswith(" (2 of 20 rows; target.embed before it is inconclusive)")
    assert report(open_, bad, first=PLACE).in_doubt == "" and report(inherited, open_, first=PLACE).in_doubt == ""


def test_layers_in_common_are_told_of_a_local_comparison_alone():
    stages = [result(f"target.layers.{layer}.q", verdict, first=PLACE if layer else None)
              for layer, verdict in ((0, "pass"), (1, "fail"))]  # fmt: skip
    found = report(*stages, first=PLACE)
    assert found.first_layers == "layer 1 only (1 of 2)"
    assert replace(found, mode="chained").first_layers == "" and report(first=PLACE).first_layers == ""
    unsure = report(stages[1], result("target.layers.0.q", "inconclusive"), first=PLACE)
    assert unsure.first_layers == ""


def test_families_are_as_bad_as_their_worst_stage_and_forced_where_nothing_else_was_seen():
    stages = [result("target.layers.0.q"), result("target.layers.1.q", "warn"), result(OUT), result(TOKENS)]
    found = report(*stages, forced=(NAMES[TOKENS].stage.template, "target.layers.{l}.q"))
    q, out = NAMES[Q].stage.template, NAMES[OUT].stage.template
    assert found.families == {q: "warn", out: "pass", TOKENS: "forced"}
    broken = replace(found, findings=(Finding("missing", OUT, 0, 0, "gone"),))
    assert broken.families[out] == "fail"


@pytest.mark.parametrize(("x", "bound", "times"), [(3, 1.5, 2), (0, 1.5, 0), (0.1, 0, inf), (0, 0, 0.0)])
def test_a_statistic_is_so_many_times_its_bound(x, bound, times):
    assert multiple(x, bound) == times


def test_an_excess_is_the_largest_of_all_bounds_and_of_choices_endless():
    bounds = {"l2": (1.5, 3.0), "worst_row": (2.0, 3.0), "largest": (1.0, 1.0)}
    assert excess(result(x={"l2": 3.0, "worst_row": 5.0, "cosine": 99}, bounds=bounds)) == 2.5
    assert excess(result()) == 0 and excess(result(choices={"same": 3, "bug": 0})) == 0
    assert excess(result(choices={"same": 3, "bug": 1})) == inf


def marked(*results: StageResult, mode: str = "chained") -> dict[str, tuple[str, ...]]:
    model = SimpleNamespace(family="p-eagle")
    golden = SimpleNamespace(declared=NAMES, manifest=SimpleNamespace(model=model))
    return {one.stage: one.marks for one in mark(results, golden, mode)}


def bad(stage: str, l2: float = 4.5, verdict: str = "fail", **more) -> StageResult:
    return result(stage, verdict, x={"l2": l2}, bounds={"l2": (1.5, 3.0)}, relative_l2=0.1, **more)


ATTN_IN = "target.layers.0.attn_in"


@pytest.mark.parametrize(
    ("results", "marks"),
    [
        ([bad(ATTN_IN), bad(Q)], {ATTN_IN: ("own", "step"), Q: ("inherited",)}),
        ([bad(ATTN_IN), bad(Q, 6.75)], {ATTN_IN: ("own", "step"), Q: ("inherited",)}),
        ([bad(ATTN_IN), bad(Q, 6.76)], {ATTN_IN: ("own", "step"), Q: ("inherited", "grown")}),
        ([bad(ATTN_IN), bad(Q, 1.0, "pass")], {ATTN_IN: ("own", "spike"), Q: ()}),
        ([bad(ATTN_IN, 1.0, "pass"), bad(Q)], {ATTN_IN: (), Q: ("own", "spike")}),
        ([bad(ATTN_IN, 1.6, "warn"), bad(Q, 1.8, "warn")], {ATTN_IN: ("own", "step"), Q: ("inherited",)}),
        ([bad(Q, 0.2, "pass")], {Q: ("over-precise",)}),
        ([bad(Q, 0.25, "pass")], {Q: ()}),
        ([replace(bad(Q, 0.2, "pass"), relative_l2=0.0)], {Q: ()}),
        ([replace(bad(Q, 0.2, "pass"), judge="relative")], {Q: ()}),
        ([bad(LOGITS), result(TOKENS, "fail", choices={"bug": 1})], {LOGITS: ("own", "step"), TOKENS: ("inherited",)}),
        ([bad(LOGITS, 1.0, "pass"), result(TOKENS, "fail", choices={"bug": 1})],
         {LOGITS: (), TOKENS: ("scores", "spike")}),
        ([bad(LOGITS), result(TOKENS, "fail", choices={"bug": 1}, against_scores=1)],
         {LOGITS: ("own", "step"), TOKENS: ("own", "spike")}),
        ([bad("target.embed"), bad(LOGITS)], {"target.embed": ("own", "step"), LOGITS: ("inherited",)}),
    ],
)  # fmt: skip
def test_whose_error_it_is_is_marked(results, marks):
    assert marked(*results) == marks


def test_nothing_is_inherited_in_a_local_comparison():
    assert marked(bad(ATTN_IN), bad(Q), mode="local") == {ATTN_IN: ("own",), Q: ("own",)}
    assert marked(bad(Q, 0.2, "pass"), mode="local") == {Q: ("over-precise",)}


def test_an_error_that_passed_unseen_between_is_inherited_and_grown():
    assert marked(bad("target.embed"), bad(ATTN_IN, 1.0, "pass"), bad(Q))[Q] == ("inherited", "grown")


def disputing(*pairs) -> SimpleNamespace:
    """A golden of witnesses, each of stages that it saw and of those that it disputes."""
    seen = tuple(
        SimpleNamespace(witness=f"w{n}", stages=stages, disputed=disputed, versions={"w0": "1.2"}, prompts=2)
        for n, (stages, disputed) in enumerate(pairs)
    )
    manifest = SimpleNamespace(
        corroborations=seen, stages=[1] * 9, case=SimpleNamespace(prompts=[1] * 3)
    )  # fmt: skip
    return SimpleNamespace(manifest=manifest, declared=NAMES)


def test_where_references_disagree_a_stage_is_disputed_and_what_is_behind_it_where_it_fails():
    golden = disputing(((ATTN_IN, OUT), (ATTN_IN,)), ((OUT,), ()))
    wrong = dict(first=PLACE, worst=PLACE, bad_rows=3, relation="x")
    attested = attest([result(ATTN_IN), result(Q, "fail", **wrong), result("target.layers.0.k"), result(OUT, "fail"),
                       result("target.embed", "fail")], golden)  # fmt: skip
    verdicts = {one.stage: (one.verdict, one.marks) for one in attested}
    assert verdicts == {
        ATTN_IN: ("disputed", ("disputed",)), Q: ("disputed", ("disputed",)), "target.layers.0.k": ("pass", ()),
        OUT: ("fail", ("corroborated",)), "target.embed": ("fail", ()),
    }  # fmt: skip
    assert attested[0].note == "the references disagree on this stage (`parity corroborate`)"
    assert attested[1].note.startswith("the references disagree on a stage that it is computed from (")
    assert (attested[1].first, attested[1].worst, attested[1].bad_rows, attested[1].relation) == (None, None, 0, "")
    assert attest([result(ATTN_IN, "not judged")], golden)[0].verdict == "not judged"
    doubts = {stage: in_doubt(stage, golden) for stage in (ATTN_IN, Q, OUT, "target.embed")}
    assert doubts == {ATTN_IN: True, Q: True, OUT: False, "target.embed": False}
    assert not in_doubt(Q, disputing(((Q,), ())))


def test_sides_in_doubt_and_witnesses_are_told():
    assert doubted_sides(disputing(((), (ATTN_IN,)))) == {"target"}
    assert doubted_sides(disputing(((), ("drafter.logits", "kv.drafter.0.k", "kv.target.0.k")))) == {
        "drafter",
        "target",
    }
    assert witnesses(disputing(((ATTN_IN, OUT), (ATTN_IN,)), ((OUT,), ())).manifest) == (
        "w0 1.2 confirms 2 of 9 stages on 2 of 3 prompts and disputes 1", "w1 confirms 1 of 9 stages on 2 of 3 prompts",
    )  # fmt: skip


def rows(name: str = Q) -> StageRows:
    golden = np.ones((4, 2, 3), np.float32)
    device = golden.copy()
    device[2, 1] += 1
    return StageRows(
        NAMES[name], golden, device, None, np.array([1, 0, 1, 0]), np.array([0, 1, 1, 0]), np.arange(4) + 5
    )


def flags(*which: int) -> np.ndarray:
    return np.isin(np.arange(4), which)


def test_the_first_row_is_the_earliest_by_round_and_prompt_and_the_worst_the_largest_of_the_bad_ones():
    size = np.array([9.0, 1, 3, 2])
    found = where(rows(), flags(1, 2, 3), flags(0, 1, 2, 3), size)
    assert (found["first"].position, found["worst"].position, found["bad_rows"], found["relation"]) == (8, 7, 3, "")
    assert (found["worst"].head, found["worst"].prompt, found["worst"].round, found["worst"].layer) == (1, 1, 1, 0)
    none = where(rows(), flags(), flags(1, 2), size)
    assert (none["first"].position, none["worst"].position, none["bad_rows"]) == (7, 7, 0)
    assert where(rows(), flags(1), flags(1, 2), size, 3)["first"].position == 8
    flat = replace(rows("target.layers.0.out"), golden=np.ones((4, 3)), device=np.ones((4, 3)))
    assert where(flat, flags(1), flags(1), size)["first"].head is None
    assert places.first_of(rows(), flags(0, 1)) == 0 and places.first_of(rows(), flags(1, 2)) == 1
