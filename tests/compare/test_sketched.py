"""Verdicts by sketches, best logits and some positions: clean pairs pass, defects are found, no pass lacks evidence."""

from __future__ import annotations

import numpy as np
import pytest

from parity.api import compare_dumps
from parity.compare.intervals import CONFIDENCE, factors, freedom, quantile
from parity.errors import UsageError
from parity.golden.smaller import Smaller, smaller_golden
from parity.golden.store import Dump
from parity.sketch import sketch
from tests.meta import worlds
from tests.meta.defects import DEFECTS
from tests.meta.dumps import clean, write
from tests.meta.smaller import smaller_run
from tests.sample import WHOLE, sample

SKETCH = Smaller(32, logits="top:16")
BOTH = ("golden", "run", "both")
UNSEEN = ("worst_column", "largest")
SIDES = BOTH if WHOLE else BOTH[-1:]
"""By day each side alone is asked of a clean pair, and of a row that is off."""
STAGE = "target.layers.0.ffn_out"


def smaller(pair, folder, asked=SKETCH, which="golden", of_run=None):
    """Golden and run on disk, either or both keeping less."""
    golden, run = write(pair, folder)
    if which != "run":
        golden = Dump(smaller_golden(golden, folder / "small", asked))
    if which != "golden":
        run = smaller_run(run, folder / "less", of_run or asked)
    return golden, run


def stage(report, name=STAGE):
    return next(one for one in report.stages if one.stage == name)


@pytest.mark.parametrize("which", BOTH)
def test_a_clean_pair_passes_only_where_what_a_sketch_cannot_judge_is_left_out(which, tmp_path):
    whole = clean(worlds.SHORT)
    pair = smaller(whole, tmp_path, which=which)
    report = compare_dumps(*pair)
    assert report.exit_code == 3
    assert stage(report).not_judged == UNSEEN
    assert f"--without {','.join(UNSEEN)}" in stage(report).note
    report = compare_dumps(*pair, without=UNSEEN)
    assert report.exit_code == 0, [(one.stage, one.note) for one in report.stages if one.verdict != "pass"]
    assert stage(report).evidence == "sketch of 32 numbers"
    assert stage(report, "target.layers.0.router_logits").evidence == "whole"
    assert not {*UNSEEN} & {*stage(report).x}
    widths = {name: high / low for name, (low, high) in stage(report).intervals.items() if low}
    rows = sum(len(whole.run[n][place]) for n in range(2) for place in whole.run[n] if place[1] == STAGE)
    low, high = factors(32, 1 - (1 - CONFIDENCE) / rows)  # any of the rows may be the one that is off
    assert widths["worst_row"] == pytest.approx(high / low) and widths["l2"] < high / low
    assert any("largest" in line for line in report.rests_on)


@pytest.mark.parametrize("which", BOTH)
def test_four_times_the_noise_in_one_row_fails_and_names_it(which, tmp_path):
    pair = clean(worlds.SHORT)
    true, mine = pair.golden["float32"][0][0, STAGE], pair.run[0][0, STAGE]
    mine[33] = true[33] + 12 * (mine[33].astype(np.float32) - true[33])
    report = compare_dumps(*smaller(pair, tmp_path, which=which), without=UNSEEN)
    assert report.exit_code == 1
    assert (report.first.stage, report.first.position) == (STAGE, 33)
    assert stage(report).intervals["worst_row"][0] > 3


@pytest.mark.parametrize(
    "defect", sample(DEFECTS, lambda one: one.name, lambda one: one.kind), ids=lambda defect: defect.name
)
def test_no_defect_passes_by_less_evidence(defect, tmp_path):
    pair = clean(defect.world)
    defect.plant(pair)
    try:
        golden, run = write(pair, tmp_path)
        small = Dump(smaller_golden(golden, tmp_path / "small", Smaller(16)))
        assert compare_dumps(small, run).exit_code in (1, 3)
    except UsageError as error:
        assert error.exit_code == 2


@pytest.mark.parametrize("which", SIDES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_found(value, which, tmp_path):
    pair = clean(worlds.SHORT)
    pair.run[0][0, STAGE][7, 3] = value
    report = compare_dumps(*smaller(pair, tmp_path, which=which), without=UNSEEN)
    assert report.exit_code == 1
    assert [(one.kind, one.stage) for one in report.findings] == [("non-finite", STAGE)]
    assert "position 7 " in report.findings[0].message


@pytest.mark.parametrize("which", SIDES)
def test_a_noise_floor_that_is_not_finite_is_found(which, tmp_path):
    pair = clean(worlds.SHORT)
    pair.golden["bfloat16"][0][0, STAGE][7, 3] = np.nan
    report = compare_dumps(*smaller(pair, tmp_path, which=which), without=UNSEEN)
    assert [(one.kind, one.stage) for one in report.findings] == [("non-finite", STAGE)]


def test_a_bias_and_a_scale_are_judged_by_sums_and_norms(tmp_path):
    for name, spoil in {"bias": lambda x, size: x + 0.02 * size, "scale": lambda x, size: x * 1.05}.items():
        pair = clean(worlds.SHORT)
        for tensors in pair.run:
            for place in [place for place in tensors if place[1] == STAGE]:
                wide = tensors[place].astype(np.float32)
                tensors[place] = spoil(wide, np.sqrt(np.square(wide).mean())).astype(tensors[place].dtype)
        report = compare_dumps(*smaller(pair, tmp_path / name), without=UNSEEN)
        assert stage(report).verdict == "fail"
        assert stage(report).intervals[name][0] > 5


def test_an_error_out_of_sight_of_one_seed_is_in_that_of_another(tmp_path):
    pair = clean(worlds.SHORT)
    rows = pair.run[0][0, STAGE].astype(np.float64)
    signs = sketch(np.eye(rows.shape[1]), 16, 0)[:, :16].astype(np.float64)
    hidden = np.linalg.svd(np.concatenate([signs, np.ones((rows.shape[1], 1))], axis=1))[0][:, -1]
    pair.run[0][0, STAGE] = (rows + 0.1 * np.linalg.norm(rows, axis=1, keepdims=True) * hidden).astype(np.float32)
    seen, later = (
        compare_dumps(*smaller(pair, tmp_path / str(seed), Smaller(16, seed)), without=(*UNSEEN, "worst_row"))
        for seed in (0, 1)
    )
    assert stage(seen).x["l2"] < 1.5, "who knows the seed fools a sketch: docs/smaller-goldens.md says so"
    assert stage(later).verdict == "fail"


def test_sketches_of_two_seeds_are_refused(tmp_path):
    pair = smaller(clean(worlds.SHORT), tmp_path, which="both", of_run=Smaller(32, 5, logits="top:16"))
    with pytest.raises(UsageError, match="seeds 0 and 5"):
        compare_dumps(*pair)


def test_sketches_of_two_sizes_are_compared_by_the_numbers_that_both_have(tmp_path):
    report = compare_dumps(*smaller(clean(worlds.SHORT), tmp_path, which="both", of_run=Smaller(20, logits="top:16")))
    assert stage(report).evidence == "sketch of 20 numbers"


def test_a_sketch_that_is_the_goldens_is_no_pass(tmp_path):
    pair = clean(worlds.SHORT)
    for tensors, true in zip(pair.run, pair.golden["float32"], strict=True):
        for place in [place for place in tensors if place[1] == STAGE]:
            tensors[place] = true[place].copy()
    report = compare_dumps(*smaller(pair, tmp_path), without=UNSEEN)
    assert "handed in" in stage(report).note
    assert report.exit_code == 3


@pytest.mark.parametrize("which", SIDES)
def test_best_logits_alone_judge_their_columns_and_say_so(which, tmp_path):
    pair = smaller(clean(worlds.SHORT), tmp_path, Smaller(logits="top:16"), which)
    report = compare_dumps(*pair)
    assert (report.exit_code, stage(report, "target.logits").not_judged) == (3, ("columns",))
    report = compare_dumps(*pair, without=("columns",))
    assert report.exit_code == 0
    assert stage(report, "target.logits").evidence == "top 16 and log-sum-exp"
    assert 0 <= stage(report, "target.logits").x["kl_at_least"] < 0.01


@pytest.mark.parametrize("which", SIDES)
def test_another_token_is_a_bug_by_the_best_logits_as_by_all(which, tmp_path):
    pair = clean(worlds.SHORT)
    pair.run[0][0, "target.tokens"][5] = int(pair.golden["float32"][0][0, "target.logits"][5].argmin())
    report = compare_dumps(*smaller(pair, tmp_path, Smaller(logits="top:16"), which), without=("columns",))
    assert stage(report, "target.tokens").choices["bug"] == 1


def test_a_token_beyond_too_few_best_logits_is_inconclusive(tmp_path):
    pair = clean(worlds.SHORT)
    for variant in ("float32", "bfloat16"):
        pair.golden[variant][0][0, "target.logits"][5] = 1.0
    pair.run[0][0, "target.logits"][5] = 1.0
    mine, other = (sorted(range(9))[place] for place in (0, 8))
    pair.golden["float32"][0][0, "target.tokens"][5], pair.run[0][0, "target.tokens"][5] = mine, other
    report = compare_dumps(*smaller(pair, tmp_path, Smaller(logits="top:4")), without=("columns",))
    assert stage(report, "target.tokens").verdict == "inconclusive"
    assert "no logit" in stage(report, "target.tokens").note


def test_a_run_that_keeps_fewer_rows_is_inconclusive_until_that_is_left_out(tmp_path):
    pair = smaller(clean(worlds.SHORT), tmp_path, Smaller(positions="0-9"), "run")
    report = compare_dumps(*pair)
    assert report.exit_code == 3
    assert "rows" in stage(report).not_judged
    assert compare_dumps(*pair, without=("rows",)).exit_code == 0


def test_some_positions_of_a_golden_are_judged_by_every_bound(tmp_path):
    pair = smaller(clean(worlds.SHORT), tmp_path, Smaller(positions="0-9,40-"))
    report = compare_dumps(*pair)
    assert report.exit_code == 0
    assert "positions 0-9,40-" in report.rests_on[0]
    assert stage(report).rows == 170


def test_another_choice_at_a_position_that_is_not_kept_is_inconclusive(tmp_path):
    pair = clean(worlds.SHORT)
    logits = pair.golden["float32"][0][0, "target.logits"]
    pair.run[0][0, "target.tokens"][20] = int(logits[20].argmin())
    golden, run = smaller(pair, tmp_path, Smaller(positions="0-9"))
    assert stage(compare_dumps(golden, run), "target.tokens").verdict == "inconclusive"
    assert compare_dumps(golden, run, without=("rows",)).exit_code == 0


def test_what_may_be_left_out_has_a_name(tmp_path):
    with pytest.raises(UsageError, match="--without everything"):
        compare_dumps(*write(clean(worlds.SHORT), tmp_path), without=("everything",))


def test_nothing_that_whole_tensors_judge_is_left_out(tmp_path):
    pair = clean(worlds.SHORT)
    pair.run[0][0, STAGE][7, 3] *= 40
    report = compare_dumps(*write(pair, tmp_path), without=UNSEEN)
    assert report.exit_code == 1


def test_two_hundred_planted_errors_lie_inside_their_intervals():
    inside = {"stage": 0, "row": 0}
    for trial in range(200):
        rng = np.random.default_rng(trial)
        rows = rng.standard_normal((20, 200)) * np.where(np.arange(200) == 7, 30, 1)
        kind = trial % 4
        error = rng.standard_normal((20, 1)) * rng.standard_normal(200) if kind == 0 else rng.standard_normal((20, 200))
        error = np.where(np.arange(200) % 50 == 3, error, 0) if kind == 1 else rows.copy() if kind == 2 else error
        moved = rows + 10.0 ** rng.uniform(-3, 0) * error
        sums = (sketch(moved, 16, trial) - sketch(rows, 16, trial))[:, :16].astype(np.float64)
        true, estimate = np.linalg.norm(moved - rows, axis=1), np.sqrt(np.square(sums).mean(axis=1))
        for name, (one, other, ends) in {
            "row": (true[3], estimate[3], factors(16)),
            "stage": (np.linalg.norm(true), np.linalg.norm(estimate), factors(freedom(sums))),
        }.items():
            inside[name] += bool(ends[0] * other <= one <= ends[1] * other)
    assert min(inside.values()) >= 190, inside


def test_quantiles_of_chi_square():
    assert quantile(0.005, 4.0) == pytest.approx(0.206989, rel=1e-5)
    assert quantile(0.995, 64.0) == pytest.approx(96.8781, rel=1e-5)
    assert quantile(0.995, 3000.0) == pytest.approx(3203.28, rel=1e-5)


def test_an_interval_that_settles_nothing_can_be_left_out_and_one_that_does_cannot(tmp_path):
    pair = smaller(clean(worlds.SHORT), tmp_path / "clean", Smaller(8))
    assert compare_dumps(*pair, without=UNSEEN).exit_code == 3
    report = compare_dumps(*pair, without=(*UNSEEN, "worst_row"))
    assert report.exit_code == 0
    assert "worst_row" in stage(report).not_judged
    wrong = clean(worlds.SHORT)
    wrong.run[0][0, STAGE][9] = 0
    report = compare_dumps(*smaller(wrong, tmp_path / "wrong", Smaller(8)), without=(*UNSEEN, "worst_row"))
    assert report.exit_code == 1
