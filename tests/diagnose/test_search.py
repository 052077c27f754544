"""The search of a diagnosis: its limit, its pairs, what it cannot tell apart, and what its counts count."""

from __future__ import annotations

from dataclasses import replace
from math import hypot, inf
from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare.predicate import Predicate
from parity.diagnose import causes, clock, whole
from parity.diagnose.clock import SearchClock, TimeIsUp
from parity.diagnose.conditional import only
from parity.diagnose.counterfactual_runs import NothingChanged
from parity.diagnose.fitting import STEPS, VERTICES, beside_clean, clean_value, golden_section, parabolas
from parity.diagnose.ranking import Trial, best_of_each
from parity.diagnose.residuals import Residual
from parity.diagnose.search import tiers
from parity.diagnose.search.pairs import pairs
from parity.diagnose.step import CONFIRMED, VALUES, DiagnosisStep, _differ_in_words, leading_trials
from parity.diagnose.tensors import sampled_gap
from parity.diagnose.trials import ResidualChange
from parity.references.hypotheses.catalogue import Fit
from tests.diagnose.test_honest import Q, red
from tests.diagnose.toys import Toy, explained, scaled
from tests.meta import plants as p

NOTHING = tuple(scaled(f"other-{number}", Q, 1.5 + number / 100) for number in range(60))


def times(value: float, from_round: int = 0):
    """The stage is so many times what it should be, from a round on."""

    def plant(pair) -> None:
        for tensors, place in p.each(pair.run, Q):
            if place[0] >= from_round:
                tensors[place] = (tensors[place].astype(np.float32) * np.float32(value)).astype(np.float32)

    return plant


@pytest.mark.parametrize("true", [1.00034, 0.9, 1.7])
def test_a_constant_that_is_hardly_off_is_fitted(true):
    """An error that is linear in how far a parameter is off, beside noise, as a counterfactual's is."""
    seen: dict[float, float] = {}

    def error(x: float) -> float:
        return seen.setdefault(x, hypot((x - true) * (1 + 0.2 * (x - true)), 1e-5))

    golden_section(error, 0.8, 1.9, STEPS)
    assert abs(min(seen, key=seen.__getitem__) - true) > 1e-4
    parabolas(error, 0.8, 1.9, tuple(seen), VERTICES)
    assert abs(min(seen, key=seen.__getitem__) - true) < 1e-6


@pytest.mark.parametrize(("true", "aside"), [(1.0003, 1e-5), (0.9996, 1e-5), (1.0003, 30.0), (1.3, 1e9)])
def test_a_constant_that_every_point_of_a_scan_is_further_from_is_fitted(true, aside):
    """Doing nothing leaves an error of one. Where most of it lies elsewhere (`aside`), three runs say so."""
    seen: dict[float, float] = {}

    def error(x: float) -> float:
        return seen.setdefault(x, hypot(x - true, aside) / hypot(1 - true, aside))

    beside_clean(error, 1.0, 0.5, 2.0)
    if aside < 1:
        assert abs(min(seen, key=seen.__getitem__) - true) < 1e-6 and len(seen) <= 2 + 1 + VERTICES
    else:
        assert len(seen) <= 3


THETA_KEY = "rope_parameters.rope_theta"


@pytest.mark.parametrize("recorded", [{THETA_KEY: 20000.0}, {}, {THETA_KEY: 30.0}])
def test_a_constant_beside_what_the_golden_records_of_its_config_is_fitted(recorded, tmp_path):
    """No point of the scan is near 20000; without a record, or with one out of range, the search cannot know of it."""
    failing = red(times(1.002), tmp_path)
    model = failing.golden.manifest.model
    drafter = model.drafter.model_copy(update={"constants": recorded})
    model = model.model_copy(update={"drafter": drafter})
    failing.golden.manifest = failing.golden.manifest.model_copy(update={"model": model})
    fit = Fit(1e3, 1e7, clean=None, log=True, constant=f"drafter.{THETA_KEY}")
    theta = Toy("theta", Q, lambda value, round_, x: (x * np.float32(value / 20000)).astype(np.float32), fit=fit)
    causes = explained(failing, [theta]).causes
    assert [round(cause.value, -1) for cause in causes] == ([20040] if 20000.0 in recorded.values() else [])


@pytest.mark.parametrize(
    ("fit", "clean"),
    [
        (Fit(1.0, 9.0, clean=2.0, constant="target.alpha"), 3.0),
        (Fit(1.0, 9.0, clean=2.0, constant="target.beta"), 2.0),
        (Fit(1.0, 9.0, clean=2.0, constant="drafter.alpha"), 2.0),
        (Fit(1.0, 9.0, clean=2.0, constant="target.tied"), 2.0),
        (Fit(4.0, 9.0, clean=5.0, constant="target.alpha"), None),
        (Fit(1.0, 9.0, clean=None), None),
    ],
)
def test_what_the_golden_records_is_the_value_that_changes_nothing(fit, clean):
    target, drafter = (SimpleNamespace(constants=said) for said in ({"alpha": 3, "tied": True}, {}))
    assert clean_value(fit, SimpleNamespace(target=target, drafter=drafter)) == clean


def test_without_time_the_stage_is_unexplained_and_what_was_left_out_is_said(tmp_path):
    found = explained(red(times(1.1), tmp_path), [scaled("factor", Q, 1.1)], SearchClock(0.0))
    assert found.causes == () and found.unexplained.stage == Q and found.signature, found
    assert found.untried == ("no hypothesis was tried",)


def test_what_fits_best_when_the_time_is_up_is_still_confirmed(tmp_path, monkeypatch):
    """Each counterfactual run takes one of 30 seconds; 60 hypotheses stand behind the right one."""
    ticks = iter(range(1000))
    monkeypatch.setattr(clock, "monotonic", lambda: float(next(ticks)))
    monkeypatch.setattr(causes, "components", lambda *of: ())
    asked = []
    told = SearchClock(30.0, lambda done, total, what: asked.append(what), begun=0.0)
    found = explained(red(times(1.1), tmp_path), [scaled("factor", Q, 1.1), *NOTHING], told)
    assert [cause.hypothesis for cause in found.causes] == ["factor"] and found.untried, found
    assert asked[0] == f"{Q}: factor 1.1?" and next(ticks) <= 32


def test_a_name_for_a_part_that_is_known_is_looked_for_in_less_time(tmp_path, monkeypatch):
    ticks = iter(range(1000))
    monkeypatch.setattr(clock, "monotonic", lambda: float(next(ticks)))
    found = explained(red(times(1.1), tmp_path), NOTHING, SearchClock(30.0, begun=0.0))
    ((stage, part),) = found.components
    assert (stage, part.says) == (Q, "1.1 times as large") and part.whole and next(ticks) < 20
    assert found.causes == () and found.unexplained.stage == Q and found.untried == ()


@pytest.mark.parametrize(("spent", "until"), [(0, 30), (9, 30), (29, 49), (59, 79), (75, 80), (90, 80)])
def test_a_name_has_some_time_however_long_its_part_was_looked_for(spent, until, monkeypatch):
    """Of 100 seconds 30, or 20 more than are spent; the last 20 are for confirming."""
    now = float(spent)
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    told = SearchClock(100.0, begun=0.0)
    with told.trying(clock.SHORT):
        now = until - 1.0
        told.check()
        now = float(until)
        with pytest.raises(TimeIsUp):
            told.check()


def test_parts_are_read_up_to_a_share_of_the_limit_and_what_comes_behind_to_all_of_it(monkeypatch):
    now = 94.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    told = SearchClock(100.0, begun=0.0)
    with told.until(clock.READING):
        told.check()
        now = 95.0
        with pytest.raises(TimeIsUp):
            told.check()
    told.check()


@pytest.mark.parametrize(("known", "first"), [(True, f"{Q}: factor 1.2?"), (False, "parts")])
def test_whole_hypotheses_are_asked_before_single_parts_where_the_part_is_known(known, first, tmp_path, monkeypatch):
    asked = []

    def single_parts(stage):
        asked.append("parts")
        yield from ()

    monkeypatch.setattr(tiers, "single_parts", single_parts)
    if not known:
        monkeypatch.setattr(causes, "components", lambda *of: ())
    told = SearchClock(None, lambda done, total, what: asked.append(what))
    explained(red(times(1.1), tmp_path), [scaled("factor", Q, 1.2)], told)
    assert asked[0] == first and "parts" in asked, asked


def test_a_search_that_came_to_its_end_left_nothing_out(tmp_path):
    assert explained(red(times(1.1), tmp_path), [scaled("factor", Q, 1.1)], SearchClock(1e6)).untried == ()


def test_two_causes_that_nothing_tells_apart_are_both_named(tmp_path):
    (cause,) = explained(red(times(1.1), tmp_path), [scaled("one", Q, 1.1), scaled("two", Q, 1.1)]).causes
    assert cause.hypothesis == "one" and cause.alike == ("two 1.1",) and cause.others == ()


def test_what_the_limit_leaves_untold_apart_is_named_together(tmp_path, monkeypatch):
    def up(*of):
        raise TimeIsUp

    monkeypatch.setattr(DiagnosisStep, "_left_on", up)
    (cause,) = explained(red(times(1.1), tmp_path), [scaled("one", Q, 1.1), scaled("two", Q, 1.1)]).causes
    assert cause.hypothesis == "one" and cause.alike == ("two 1.1",)


def under(id: str, *conditions: str, value=None) -> list[Trial]:
    one = SimpleNamespace(id=id)
    left = Residual(Q, True, 1.0, None, 9.0, None)
    made = [only(one, Predicate(says, lambda facts: facts.round > 0)) if says else one for says in conditions]
    return [Trial(((each, value),), left, left) for each in made]


@pytest.mark.parametrize(
    ("tied", "words"),
    [
        (under("one", "even rounds", "round 2"), True),
        (under("one", "even rounds"), False),
        (under("one", "even rounds", ""), False),
        (under("one", "even rounds") + under("two", "even rounds"), False),
        (under("one", "even rounds") + under("one", "even rounds", value=2), False),
    ],
)
def test_conditions_of_one_assumption_are_told_apart_already_or_never(tied, words):
    """A search for conditions has asked other prompts."""
    assert _differ_in_words(tied) is words


def head_times(name: str, head: int, *values: float) -> Toy:
    """One head of the stage is so many times what it should be."""

    def change(value, round_, x):
        changed = np.array(x)
        changed[:, head] *= np.float32(value)
        return changed

    return Toy(name, Q, change, values)


def test_a_pair_is_found_among_many_by_what_its_parts_do_apart(tmp_path):
    """Two heads are wrong; 40 hypotheses explain more than the second one alone, and nothing beside the first."""
    first, second = head_times("first", 0, 1.4), head_times("second", 1, 1.3)

    def plant(pair) -> None:
        for tensors, place in p.each(pair.run, Q):
            both = second.change(1.3, 0, first.change(1.4, 0, tensors[place].astype(np.float32)))
            tensors[place] = both.astype(tensors[place].dtype)

    near = [head_times(f"near-{number}", 0, 1.3 + number / 500) for number in range(40)]
    found = explained(red(plant, tmp_path), [*near, first, second])
    assert [cause.hypothesis for cause in found.causes] == ["first", "second"], found


def trial(name: str, value: float, left: float) -> Trial:
    """A trial that leaves this share of an error."""
    before, after = (Residual(Q, True, error, None, 9.0, None) for error in (1.0, left))
    return Trial(((SimpleNamespace(id=name, cost=1, seen=(), part=""), value),), before, after)


def test_the_leading_trials_are_those_of_so_many_hypotheses():
    made = [trial("crowd", value, 0.1 + value / 1000) for value in range(20)]
    made += [trial(f"single-{number}", 0, 0.2 + number / 100) for number in range(20)]
    leading = leading_trials(made)
    names = [one.assumed[0][0].id for one in leading]
    assert len(set(names)) == CONFIRMED and names.count("crowd") == VALUES
    assert [one.assumed[0][0].id for one in best_of_each(made)][:2] == ["crowd", "single-0"]


@pytest.mark.parametrize("order", [1, -1])
def test_a_tie_is_broken_by_every_stage_of_all_rounds(order):
    """Both bring the first failing stage back; one leaves another stage wrong in later rounds."""
    tied = [trial("clean", 0, 0.0), trial("dirty", 0, 0.0)][::order]

    def weigh(known, assumed, rounds, own_floor):
        dirty = assumed[0][0].id == "dirty"
        rest = Residual("kv.target.0.k", dirty, float(dirty), None, inf * dirty if dirty else 0.0, None, not dirty)
        return ResidualChange({}, {Q: Residual(Q, False, 0.0, None, 0.0, None, settled=True), rest.stage: rest})

    trials = SimpleNamespace(rounds=3, weigh=weigh, other_prompts=lambda: iter(()))
    step = DiagnosisStep(trials, (), 1, {}, tied[0].before)
    assert [one.assumed[0][0].id for one in step._tie_broken(tied)] == ["clean"]


def test_a_prompt_without_rows_of_the_stage_breaks_no_tie():
    def weigh(*of, **how):
        raise NothingChanged

    none = SimpleNamespace(rounds=0, weigh=weigh, residuals=lambda known, rounds: {})
    step = DiagnosisStep(none, (), 1, {}, trial("any", 0, 0.0).before)
    assert step._left_on(none, trial("any", 0, 0.0)) == (0, 0.0)


def test_what_is_nearly_right_under_a_condition_is_no_name():
    first, left = (Residual(Q, True, error, 9.0, 3.0, None) for error in (1.0, 0.1))
    trials = SimpleNamespace(
        rounds=1,
        harms_no_row=lambda *of: True,
        weigh=lambda *of, **how: ResidualChange({Q: first}, {Q: left}),
    )
    step = DiagnosisStep(trials, (), 1, {Q: first}, first)
    plain = Trial(((NOTHING[0], None),), first, left)
    conditional = Trial(((only(NOTHING[0], SimpleNamespace(says="in round 2")), None),), first, left)
    assert step.nearest([conditional, plain]) is plain and step.nearest([conditional]) is None


def test_a_reference_explains_nothing_by_being_larger_or_next_to_nothing():
    """The same wrong numbers beside a reference 250 times as large: a thousandth of the relative error, all of the
    error. Beside one of nearly nothing, small wrong numbers are a small error, and all wrong."""
    first = Residual(Q, True, 10.0, None, 9.0, None, rms=10.0)
    larger, nearer = (replace(first, error=10.0 / 250, rms=rms) for rms in (10.0, 1.0))
    assert first.share(larger) == 1.0 and first.explained(larger) == 0.0 and not first.fell_to(larger)
    assert first.explained(replace(nearer, error=1.0)) == pytest.approx(0.99) and first.fell_to(nearer)
    assert first.share(replace(nearer, error=3e3)) == 300.0 and first.explained(replace(nearer, error=10.0)) == 0.0
    assert first.share(replace(larger, rms=None)) == pytest.approx(1 / 250)  # a sketch tells relative errors alone


def test_a_sample_of_an_error_meets_columns_that_every_so_many_elements_would_miss():
    before = {(0, Q): np.zeros((150, 96), np.float32)}
    after = {(0, Q): np.zeros((150, 96), np.float32)}
    after[0, Q][:, [17, 81]] = 1.0
    assert sampled_gap(before, after, Q).any()
    after[0, Q][:, 17] = np.nan
    assert np.isnan(sampled_gap(before, after, Q)).any()


def test_what_a_hypothesis_leaves_at_its_bound_is_not_asked_for_a_second_one():
    """A device rounds the same wrong thing otherwise: one of many hypotheses beside it would take some of that away."""
    asked = []
    stage = SimpleNamespace(each=lambda many: asked.extend(many) or iter(()), gap=None)
    for worst, due in ((1.06, False), (5.0, True)):
        asked.clear()
        left = replace(Residual(Q, True, 1.0, 1.0, 100.0, None, settled=False), error=0.01, x=0.01, worst=worst)
        made = [
            Trial(((one, None),), Residual(Q, True, 1.0, 1.0, 100.0, None, settled=False), after)
            for one, after in ((NOTHING[0], left), (NOTHING[1], replace(left, error=0.9)))
        ]
        for tier in pairs(stage, made):
            list(tier)
        assert bool(asked) == due, worst


@pytest.mark.parametrize(("before", "counted"), [(2.0, 2.0), (40.0, 5.0)])
def test_runs_before_the_search_count_for_a_quarter_of_the_limit_at_the_most(before, counted, monkeypatch):
    monkeypatch.setattr(clock, "monotonic", lambda: 100.0)
    monkeypatch.setattr(whole, "counterfactuals", lambda golden, threads: (None, ()))
    monkeypatch.setattr(whole, "PromptTrials", lambda *of, clock: clock)
    red = SimpleNamespace(golden=None, run=None, number=0)
    asked = SimpleNamespace(golden=None, threads=1, limit=20.0, progress=None, begun=100.0 - before)
    made, _ = whole._trials(asked, red, None)
    assert made.begun == 100.0 - counted
