"""What a diagnosis may claim: never more than the same rows show, never less than the comparison found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parity.compare import compare
from parity.compare.report import FAIL, INCONCLUSIVE, Report
from parity.compare.structure import Finding
from parity.diagnose.failing_run import FailingRun, failing_run, failures
from parity.diagnose.signature import signature
from parity.errors import UsageError
from parity.golden.views import PromptSlice
from tests.diagnose.toys import POLICY, compared, explained, scaled
from tests.meta import plants as p
from tests.meta.defects import DEFECTS
from tests.meta.dumps import Pair, clean, write
from tests.meta.worlds import SHORT
from tests.sample import sample

Q, KEYS = p.Q, p.KEYS


def drifting(stage: str, step: float, from_round: int = 1):
    """The stage is off by `step` more in every round from one on."""

    def plant(pair: Pair) -> None:
        for tensors, place in p.each(pair.run, stage):
            tensors[place] = (
                tensors[place].astype(np.float32) * (1 + step * max(place[0] - from_round + 1, 0))
            ).astype(np.float32)

    return plant


def red(plant, folder: Path) -> FailingRun:
    pair = clean(SHORT)
    plant(pair)
    found = compared(pair, folder)[2]
    assert isinstance(found, FailingRun)
    return found


def test_what_changes_nothing_is_credited_with_nothing(tmp_path):
    found = explained(red(drifting(Q, 0.02), tmp_path), [scaled("no-op", Q, 1.0), scaled("hardly", Q, 1.0 + 1e-6)])
    assert found.causes == () and (found.nearest == () or found.nearest[0][1] < 0.01), found
    assert found.unexplained.stage == Q and not any("no-op" in says for says, _ in found.nearest)


def test_what_explains_the_first_wrong_round_alone_is_no_name(tmp_path):
    """An output that drifts over the rounds: a constant factor fits round 1, and is wrong in those behind it."""
    found = explained(red(drifting(Q, 0.02), tmp_path), [scaled("factor", Q, 1.02, rounds=1)])
    assert found.causes == () and found.unexplained.stage == Q, found
    assert found.signature and found.nearest


def test_what_explains_nearly_all_and_breaks_clean_rows_is_no_name(tmp_path):
    """Most of the error is one round's, and the factor is wrong for the clean rounds before it."""

    def plant(pair: Pair) -> None:
        for tensors, place in p.each(pair.run, Q):
            if place[0] == 3:
                tensors[place] = (tensors[place].astype(np.float32) * 40).astype(np.float32)

    found = explained(red(plant, tmp_path), [scaled("factor", Q, 40.0, rounds=3), scaled("broad", Q, 40.0, rounds=2)])
    assert [cause.hypothesis for cause in found.causes] == ["factor"] and not found.causes[0].others, found
    found = explained(
        red(plant, tmp_path / "again"), [scaled("broad", Q, 39.9, rounds=3), scaled("broader", Q, 40.0, rounds=2)]
    )
    assert "broader" not in [cause.hypothesis for cause in found.causes], found


@pytest.mark.parametrize("stage", [Q, KEYS])
def test_a_name_says_what_its_stage_held_before_and_holds_now_over_the_same_rows(stage, tmp_path):
    found = explained(red(p.values(lambda x: x * np.float32(1.1), stage), tmp_path), [scaled("factor", stage, 1.1)])
    (cause,) = found.causes
    assert cause.hypothesis == "factor" and cause.whole and cause.explained > 0.99 and found.unexplained is None
    assert cause.before.error == pytest.approx(0.1, rel=0.02) and cause.after.error < 0.01
    assert cause.explained == cause.before.explained(cause.after)


FAINT = 1.0 - 5.85e-4
"""A factor 5.1 standard errors from one over both prompts, 4.9 and 2.6 over each alone."""


def test_what_no_prompt_shows_alone_is_said_and_searched_for(tmp_path):
    evidence = red(p.values(lambda x: x * np.float32(FAINT), p.FFN), tmp_path)
    for number in (0, 1):
        assert failing_run(*(PromptSlice(side, number, 3) for side in (evidence.golden, evidence.run)), POLICY) is None
    found = explained(evidence, [scaled("other", p.FFN, 1.3)])
    assert found.causes == () and found.unexplained.stage == p.FFN and found.trials > 0 and found.signature, found
    (cause,) = explained(evidence, [scaled("other", p.FFN, 1.3), scaled("factor", p.FFN, FAINT)]).causes
    assert cause.hypothesis == "factor" and cause.before.red and not cause.after.red


@pytest.mark.parametrize(
    "defect",
    sample((one for one in DEFECTS if one.world is SHORT), lambda defect: defect.name, lambda defect: defect.kind),
    ids=lambda defect: defect.name,
)
def test_what_the_comparison_calls_red_is_never_clean_nor_empty(defect, tmp_path):
    pair = clean(defect.world)
    defect.plant(pair)
    try:
        found = compared(pair, tmp_path)[2]
    except UsageError:
        return  # the comparison refuses it, in a sentence
    assert found is not None, "the comparison does not pass"
    if isinstance(found, Report):
        assert found.verdict == INCONCLUSIVE and failures(found)
        return
    assert found.report.verdict == FAIL and failures(found.report)
    told = explained(found)
    assert told.unexplained is not None and told.signature, told
    assert told.unexplained.stage in {one.stage for one in found.residuals()}


def test_weights_that_differ_look_like_weights(tmp_path):
    """Small noise on a projection: no hypothesis has it, and every row shows it."""
    noise = np.random.default_rng(3)

    def plant(pair: Pair) -> None:
        drawn: dict[int, np.ndarray] = {}
        for tensors, place in p.each(pair.run, Q):
            x = tensors[place].astype(np.float32).reshape(len(tensors[place]), -1)
            mixed = drawn.setdefault(x.shape[1], noise.normal(0, 0.3 / x.shape[1] ** 0.5, (x.shape[1],) * 2))
            tensors[place] = (x + x @ mixed).astype(np.float32).reshape(tensors[place].shape)

    found = explained(red(plant, tmp_path), [scaled("other", Q, 1.3)])
    assert found.causes == () and any("as from a weight" in said for said in found.signature), found
    found = explained(red(drifting(Q, 0.4, from_round=2), tmp_path / "late"), [scaled("other", Q, 0.7)])
    assert not any("as from a weight" in said for said in found.signature), found


def test_rows_of_a_float32_run_are_wrong_far_below_the_noise_of_bfloat16(tmp_path):
    first = red(p.values(lambda x: x * np.float32(1.1), Q), tmp_path / "red").residuals()[0]
    pair = clean(SHORT)
    p.values(lambda x: x * np.float32(1.001), Q)(pair)
    golden, run = write(pair, tmp_path)
    assert any("no single row is 3x its noise" in said for said in signature(golden, run, first))
    finer = run.manifest.case.model_copy(update={"precision": "float32"})
    run.manifest = run.manifest.model_copy(update={"case": finer})
    stored = run.stored
    run.rows, run.parts = ({("float32", *place[1:]): one for place, one in of.items()} for of in (run.rows, run.parts))
    run.stored = lambda variant, *place: stored("bfloat16", *place)
    said = list(signature(golden, run, first))
    assert said and not any("no single row" in one for one in said), said


def test_a_green_comparison_has_nothing_to_diagnose(tmp_path):
    assert compared(clean(SHORT), tmp_path)[2] is None


def test_a_prompt_that_an_end_token_ended_keeps_its_budget(tmp_path):
    """A device that goes on behind an end token has to have tokens left, or nothing shows it."""
    golden = write(clean(SHORT), tmp_path)[0]
    case = golden.manifest.case
    golden.manifest = golden.manifest.model_copy(update={"case": case.model_copy(update={"max_new_tokens": 20})})
    assert PromptSlice(golden, 0, 3).manifest.case.max_new_tokens == 20
    assert PromptSlice(golden, 0, 1).manifest.case.max_new_tokens == 3


def test_what_only_the_free_run_shows_is_said(tmp_path):
    """Every stage passes on the golden's tokens, and the device alone emits something else."""
    pair = clean(SHORT)
    golden, run = write(pair, tmp_path)
    case = golden.manifest.case
    prompts = tuple(
        one.model_copy(update={"generation": one.generation.model_copy(update={"finish": "eos"})})
        for one in case.prompts
    )
    run.manifest = run.manifest.model_copy(update={"case": run.manifest.case.model_copy(update={"prompts": prompts})})
    report = replace(
        compare(golden, run, POLICY),
        verdict=FAIL,
        findings=(Finding("generation", "accept.emitted", 0, 2, "other tokens"),),
    )
    told = explained(FailingRun(golden, run, 0, report, golden))
    assert FailingRun(golden, run, 0, report, golden).free and told.causes == ()
    assert told.unexplained.stage == "accept.emitted" and "runs freely" in " ".join(told.signature)
    assert "other tokens" in " ".join(failures(report))


def test_behind_an_unexplained_stage_the_search_goes_on_where_nothing_is_computed_from_it(tmp_path):
    """The target's cache is no result of what the drafter makes of its input."""
    unexplained, cache = "drafter.fc_out", KEYS

    def plant(pair: Pair) -> None:
        drifting(unexplained, 0.3)(pair)
        p.values(lambda x: x * np.float32(1.1), cache)(pair)

    found = explained(red(plant, tmp_path), [scaled("cache", cache, 1.1), scaled("no-op", unexplained, 1.0)])
    assert found.unexplained.stage == unexplained, found
    assert [cause.hypothesis for cause in found.causes] == ["cache"], found


def test_values_that_are_wrong_before_a_stage_is_misshapen_are_explained(tmp_path):
    """The drafter's input is 1.5 times too large from round 1 on, and lacks rows in round 3."""
    stage = "drafter.fc_out"

    def plant(pair: Pair) -> None:
        for tensors, place in p.each(pair.run, stage):
            tensors[place] = (tensors[place].astype(np.float32) * (1.5 if place[0] else 1)).astype(np.float32)
            if place[0] == 3:
                tensors[place] = tensors[place][:1]

    found = explained(red(plant, tmp_path), [scaled("factor", stage, 1.5, rounds=1), scaled("no-op", stage, 1.0)])
    assert [cause.hypothesis for cause in found.causes] == ["factor"] and found.causes[0].place.round == 1, found
    assert found.unexplained.stage == stage and found.unexplained.place.round == 3


def test_a_counterfactual_is_not_searched_for_what_wrong_rows_hold_instead(tmp_path, monkeypatch):
    """Its rounds may have stages of several widths, as no golden has: they do not stand in one table."""
    pair = clean(SHORT)
    drifting(Q, 0.1)(pair)
    golden, run, _ = compared(pair, tmp_path)
    monkeypatch.setattr("parity.compare.origins.held_instead", lambda *of: "another row")
    assert compare(golden, run, POLICY).holds == "another row"
    golden.imagined = True
    assert compare(golden, run, POLICY).holds == ""
