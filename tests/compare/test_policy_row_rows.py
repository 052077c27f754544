"""The rows of a stage by their row of the policy, by hand: who judges them, beside which scores and which numbers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare import by_policy
from parity.compare.basis import Basis
from parity.compare.by_policy import _explained, _pair, _scores, judge_rows, two_devices
from parity.compare.choices import BUG, NOISE, SAME, TIE
from parity.compare.report import StageResult
from parity.compare.rows import StageRows
from parity.compare.sampling import judging
from parity.compare.sampling.judging import Replayed
from parity.errors import UsageError
from parity.policy import Bound, Row
from parity.stages import declared

NAMES = declared(2, 1)
TOKENS, LOGITS = "verify.tokens", "verify.logits"
OUT = "target.layers.0.out"
SCORES = np.float32([[4, 4, 3, 0], [4, 3.9, 3, 0], [0, 1, 2, 4]])
"""A tie of 0 and 1, noise between them, and a clear one."""


def rows_of(name: str, golden, device=None, floor=None, first: int = 5, **more) -> StageRows:
    golden = np.array(golden)
    number = np.arange(len(golden))
    device, floor = (side if side is None else np.array(side) for side in (device, floor))
    device = golden if device is None else device
    return StageRows(NAMES[name], golden, device, floor, number * 0, number * 0 + 1, number + first, **more)


def tokens(*device, **more) -> StageRows:
    return rows_of(TOKENS, [0, 0, 3], device, **more)


def logits(scores=SCORES, noise: float = 0.02, **more) -> StageRows:
    return rows_of(LOGITS, scores, floor=scores, noise=np.full(len(scores), noise), **more)


LOGIT_ROWS = logits()


def policy(judge: str, **bounds: float) -> Row:
    made = {name: Bound(ok=warn, warn=warn) for name, warn in bounds.items()}
    return Row(stages="*", judge=judge, bounds=made, reason="as a test has it")


@pytest.fixture
def asked(monkeypatch):
    """The sides' rows by stage are those of `held`; every call is in `calls`; nothing contradicts but what is said."""
    world = SimpleNamespace(held={LOGITS: LOGIT_ROWS}, calls=[], against=[False] * 3, replay=None)

    def stage_rows(golden, run, named, **how):
        world.calls.append((getattr(run, "name", "golden"), named.name, how))
        return getattr(run, "held", world.held).get(named.name)

    monkeypatch.setattr(by_policy, "stage_rows", stage_rows)
    monkeypatch.setattr(
        by_policy, "contradicting", lambda golden, run, rows: np.array(world.against[: len(rows.golden)])
    )
    monkeypatch.setattr(judging, "replayed", lambda golden, run, rows: world.replay)
    return world


def sides(keeps=(False, False), stages=(TOKENS, LOGITS), declares=NAMES, draws=False, golden_has=NAMES, alone=None):
    case = SimpleNamespace(draws=draws, mode="local")
    golden = SimpleNamespace(
        declared=declares, keeps=keeps[0], manifest=SimpleNamespace(stages=golden_has, case=case), folder="/golden"
    )
    manifest = SimpleNamespace(stages=stages, case=case)
    alone = alone or []
    run = SimpleNamespace(
        name="run", keeps=keeps[1], manifest=manifest, sides=[None] * max(len(alone), 1), alone=lambda: alone
    )
    return golden, run


def judged(rows: StageRows, row: Row, without=(), **more) -> StageResult:
    golden, run = sides(**more)
    result, findings = judge_rows(golden, run, rows, row, Basis(golden, run), without)
    assert findings == []
    return result


def counts(result: StageResult) -> dict[str, int]:
    return {name: count for name, count in result.choices.items() if count}


def test_choices_are_judged_beside_the_scores_that_the_run_recorded(asked):
    found = judged(tokens(1, 1, 3), policy("decision"))
    assert (found.verdict, counts(found), found.rows) == ("pass", {SAME: 1, TIE: 1, NOISE: 1}, 3)
    assert found.not_judged == () and found.note == "" and asked.calls == [("run", LOGITS, {})]
    assert counts(judged(tokens(2, 1, 3), policy("decision"))) == {SAME: 1, NOISE: 1, BUG: 1}


def test_beside_the_goldens_own_where_the_run_recorded_none(asked):
    found = judged(tokens(1, 1, 3), policy("decision"), stages=(TOKENS,))
    assert found.verdict == "pass" and asked.calls == [("golden", LOGITS, {"device": "float32", "mode": "local"})]


@pytest.mark.parametrize("more", [{"golden_has": (TOKENS,)}, {"declares": {TOKENS: NAMES[TOKENS]}}])
def test_without_scores_every_difference_is_a_bug(asked, more):
    found = judged(tokens(1, 1, 3), policy("decision"), **more)
    assert (found.verdict, counts(found)) == ("fail", {SAME: 1, BUG: 2}) and asked.calls == []


def test_scores_of_other_rows_are_paired_with_the_choices_by_their_labels(asked):
    asked.held[LOGITS] = logits(SCORES[[2, 0, 1, 2]], first=4)
    assert counts(judged(tokens(1, 1, 3), policy("decision"))) == {SAME: 1, TIE: 1, NOISE: 1}
    asked.held[LOGITS] = logits(SCORES[:2])  # of the third none is kept
    assert counts(judged(tokens(1, 1, 3), policy("decision"))) == {SAME: 1, BUG: 2}


@pytest.mark.parametrize("keeps", [(True, False), (False, True), (True, True)])
def test_rows_whose_scores_are_not_kept_are_left_out_and_counted(asked, keeps):
    asked.held[LOGITS] = logits(SCORES[:2])
    same = judged(tokens(1, 1, 3), policy("decision"), keeps=keeps)
    assert (same.verdict, counts(same), same.rows, same.note) == ("pass", {TIE: 1, NOISE: 1}, 3, "")
    other = judged(tokens(1, 1, 2), policy("decision"), keeps=keeps)
    assert other.verdict == "inconclusive" and other.note.startswith("1 of 3 rows hold another choice")
    assert judged(tokens(1, 1, 2), policy("decision"), keeps=keeps, without=("rows",)).verdict == "pass"
    asked.held[LOGITS] = LOGIT_ROWS
    assert counts(judged(tokens(1, 1, 3), policy("decision"), keeps=keeps)) == {SAME: 1, TIE: 1, NOISE: 1}


def test_a_choice_among_logits_that_are_not_kept_is_unknown(asked):
    known = np.array([[0, 1], [0, 1], [3, 2]])
    asked.held[LOGITS] = logits(noise=0.01, known=known)
    assert judged(tokens(1, 0, 3), policy("decision")).verdict == "pass"
    found = judged(tokens(1, 2, 3), policy("decision"))
    assert (found.verdict, found.note) == ("fail", "")
    asked.held[LOGITS] = logits(noise=0.5, known=known)
    found = judged(tokens(1, 2, 3), policy("decision"))
    said = "1 of 3 rows hold a choice of which the golden keeps no logit"
    assert found.verdict == "inconclusive" and found.note.startswith(said)


def test_a_choice_against_its_scores_is_a_bug_however_it_is_judged(asked):
    asked.against = [False, True, False]
    for row in (policy("decision"), policy("exact")):
        found = judged(tokens(0, 0, 3), row)
        assert (found.verdict, found.against_scores, counts(found)) == ("fail", 1, {SAME: 2, BUG: 1})


def test_where_no_difference_is_allowed_scores_excuse_none(asked):
    assert counts(judged(tokens(1, 0, 3), policy("exact"))) == {SAME: 2, BUG: 1} and asked.calls == []
    assert judged(tokens(0, 0, 3), policy("exact")).verdict == "pass"
    assert judged(rows_of("accept.length", [1, 2], [1, 2]), policy("exact")).verdict == "pass"
    assert judged(rows_of("accept.length", [1, 2], [1, 3]), policy("exact")).verdict == "fail"


@pytest.mark.parametrize("row", ["exact", "decision"])
def test_what_numbers_drew_is_judged_by_them_where_anything_is_drawn(asked, row):
    """The second row is drawn: another token than the golden's, which the number calls for, then does not."""
    replay = Replayed(np.array([False, True, False]))
    asked.replay, asked.against = replay, [False, True, False]
    found = judged(tokens(0, 2, 3), policy(row), draws=True)
    assert (found.verdict, counts(found), found.against_scores) == ("pass", {SAME: 2, NOISE: 1}, 0)
    assert judged(tokens(0, 2, 3), policy(row)).verdict == "fail"  # greedy
    replay.wrong[1], replay.said = True, "so it is"
    found = judged(tokens(0, 2, 3), policy(row), draws=True)
    assert (found.verdict, found.note, found.against_scores) == ("fail", "so it is", 1)
    asked.replay, asked.against = None, [False] * 3
    assert judged(tokens(0, 0, 3), policy(row), draws=True).verdict == "pass"


GOLDEN = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
NUMBERS = rows_of(OUT, GOLDEN, GOLDEN * np.float32(1.005), GOLDEN * np.float32(1.01))


@pytest.mark.parametrize("two", [False, True])
def test_numbers_are_judged_by_their_bounds_of_one_device_and_of_two(asked, two):
    more = {"alone": [SimpleNamespace(), SimpleNamespace()]} if two else {}
    found = judged(NUMBERS, policy("noise", l2=3.0), **more)
    assert (found.judge, found.verdict, found.rows) == ("noise", "pass", 40) and found.x["l2"] == pytest.approx(
        0.5, rel=0.01
    )
    assert judged(NUMBERS, policy("noise", l2=0.4), **more).verdict == "fail"
    assert judged(NUMBERS, policy("relative", l2=0.006), **more).judge == "relative"


def test_numbers_that_have_to_be_equal_are_looked_at_for_what_is_no_number(asked):
    golden, run = sides()
    for at, kinds in (((3, 2), ["non-finite"]), (None, [])):
        device = GOLDEN.copy()
        if at:
            device[at] = np.nan
        rows = rows_of(OUT, GOLDEN, device, GOLDEN)
        result, findings = judge_rows(golden, run, rows, policy("exact"), Basis(golden, run), ())
        assert result.verdict == ("fail" if at else "pass") and [one.kind for one in findings] == kinds
        assert not at or "the first at [2] of position 8 (" in findings[0].message


@pytest.mark.parametrize(
    ("rows", "judge", "said"),
    [
        (NUMBERS, "experts", f"judges {OUT} by experts; that is for choices"),
        (NUMBERS, "decision", f"judges {OUT} by decision; that is for choices"),
        (tokens(0, 0, 3), "noise", f"judges {TOKENS} by noise; that is for numbers"),
        (tokens(0, 0, 3), "none", f"judges {TOKENS} by none; that is for numbers"),
    ],
)
def test_a_row_of_the_policy_that_is_of_the_other_kind_is_refused(asked, rows, judge, said):
    bounds = {"l2": 3.0} if judge == "noise" else {}
    with pytest.raises(UsageError) as refused:
        judged(rows, policy(judge, **bounds))
    assert str(refused.value) == f"policy row '*' {said}"
    if rows is not NUMBERS:
        with pytest.raises(UsageError, match=said):
            judged(rows, policy(judge, **bounds), alone=[SimpleNamespace(), SimpleNamespace()])


def test_two_devices_are_more_than_one():
    assert [two_devices(sides(alone=[None] * number)[1]) for number in (1, 2)] == [False, True]


def device(name: str, *chosen, stage: str = TOKENS, scores=LOGIT_ROWS):
    held = {stage: rows_of(stage, [0, 0, 3], chosen)} if chosen else {}
    manifest = SimpleNamespace(
        stages=(stage, *([] if scores is None else [LOGITS])), case=SimpleNamespace(mode="local")
    )
    return SimpleNamespace(name=name, held=held | ({} if scores is None else {LOGITS: scores}), manifest=manifest)


def test_two_devices_choices_are_judged_against_each_other(asked):
    one, other = device("one", 0, 1, 3), device("other", 1, 0, 3)
    found = judged(tokens(0, 1, 3), policy("decision"), alone=[one, other])
    assert (found.verdict, counts(found)) == ("pass", {SAME: 1, TIE: 1, NOISE: 1})
    exact = judged(tokens(0, 1, 3), policy("exact"), alone=[one, other])
    assert (exact.verdict, counts(exact)) == ("fail", {SAME: 1, BUG: 2})
    bare = judged(tokens(0, 1, 3), policy("decision"), alone=[one, other], golden_has=(TOKENS,))
    assert counts(bare) == {SAME: 1, BUG: 2}
    asked.against = [True, False, False]
    assert judged(tokens(0, 1, 3), policy("decision"), alone=[one, other]).against_scores == 1
    undeclared = {"declares": {TOKENS: NAMES[TOKENS]}}
    assert judged(tokens(0, 1, 3), policy("exact"), alone=[one, other], **undeclared).against_scores == 0


def test_each_of_two_devices_has_its_own_rows_and_scores(asked, monkeypatch):
    given = []
    monkeypatch.setattr(by_policy, "judge_pair", lambda *of: given.append(of) or SimpleNamespace(choices={}))
    one, other = device("one", 0, 1, 3), device("other", 1, 0, 3, scores=replace(LOGIT_ROWS, golden=SCORES + 1))
    golden, run = sides(alone=[one, other])
    on, row = Basis(golden, run), policy("decision")
    _pair(golden, run, tokens(0, 1, 3), row, on)
    mine, theirs, scores, own, judge, against, excluded = given.pop()
    assert (mine, theirs) == (one.held[TOKENS], other.held[TOKENS]) and scores is LOGIT_ROWS and judge is row
    assert own == [one.held[LOGITS], other.held[LOGITS]] and not against.any() and not excluded.any()
    _pair(golden, run, tokens(0, 1, 3), policy("exact"), on)
    assert given[0][2:4] == (None, [None, None])
    for both in ([one, device("none")], [device("none"), other]):
        with pytest.raises(ValueError, match=r"rows of verify\.tokens, but not each its own"):
            _pair(golden, sides(alone=both)[1], tokens(0, 1, 3), row, on)


def test_noise_that_would_explain_any_choice_explains_none():
    result = StageResult(TOKENS, TOKENS, None, "decision", "pass", "as a test has it", rows=3, choices={NOISE: 1})
    wide = replace(LOGIT_ROWS, floor=SCORES * np.float32(1.09))
    found = _explained(result, wide)
    said = "the noise floor of its scores is 9% of the golden: it explains any choice"
    assert (found.verdict, found.note) == ("inconclusive", said)
    assert _explained(result, replace(wide, floor=SCORES * np.float32(1.08))) is result
    for choices in ({NOISE: 0, TIE: 3}, {}):
        calm = replace(result, choices=choices)
        assert _explained(calm, wide) is calm
    assert _explained(result, None) is result
    assert _explained(replace(result, verdict="fail"), wide).verdict == "fail"


def test_what_is_no_choice_has_no_scores_beside_it(asked):
    golden, run = sides()
    assert _scores(golden, run, NAMES["accept.length"]) is None and asked.calls == []
