"""Verdicts against the run's own past: what is planted is found, with its date; what is clean is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from parity.errors import UsageError
from parity.history import Bands, verdicts, waiting
from parity.history.changes import RECENT
from parity.history.series import HALF_WIDTHS
from tests.history.synthetic import KINDS, World, cells, frame, world
from tests.sample import first

CELL, OTHER = cells(2)
FC_OUT = (CELL, "drafter.fc_out", "local", "l2")
LOGITS = (CELL, "target.logits", "chained", "l2")
LOUD = ("regression", "drift", "improvement")


def noisy(made: World, kind: str) -> int:
    """The figure of this kind of noise that is noisiest beside the least width of its band."""
    own = [place for place, one in enumerate(made.kinds) if one == kind and made.keys[place][3] == "l2"]
    return max(own, key=lambda place: made.noise[place] / HALF_WIDTHS["l2"][made.keys[place][2], "x noise"].absolute)


def judged(made: World, night: int | None = None, kinds=LOUD) -> list:
    night = made.nights - 1 if night is None else night
    return [one for one in verdicts(frame(made, night), made.name(night)) if one.kind in kinds]


def flat(nights: int, count: int = 1) -> World:
    """A deterministic device: every night the same, bit for bit."""
    made = world(0, nights, count)
    made.values[:] = made.values[0]
    return made


def test_one_step_and_one_slow_drift_are_found_with_date_and_commits():
    made = world(7)
    step, drift = noisy(made, "normal"), noisy(made, "student")
    made.values[19:, step] += 8 * made.noise[step]
    made.values[:, drift] += 14 * made.noise[drift] * np.arange(30) / 29
    found = judged(made)
    assert [one.kind for one in found] == ["regression", "drift"]
    first, second = found
    assert (first.cell, first.stage, first.mode, first.metric) == made.keys[step][:4]
    assert (first.since_date, first.since_night) == (made.date(19), made.name(19))
    assert first.commits == (made.commit(18), made.commit(19)) and first.nights == 11
    assert first.after - first.before == pytest.approx(8 * made.noise[step], rel=0.25)
    assert all(
        part in first.sentence for part in (first.cell, first.stage, made.date(19), made.commit(18), made.commit(19))
    )
    assert (second.cell, second.stage, second.mode, second.metric) == made.keys[drift][:4]
    assert second.commits[1] == made.commit(29) and second.after > second.before


@pytest.mark.parametrize("seed", first([11, 12]))
def test_thirty_clean_nights_raise_no_alarm(seed):
    made = world(seed)
    assert {one.kind for night in (14, 17, 20, 25, 29) for one in judged(made, night)} == set()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "same"])
def test_a_step_in_every_kind_of_noise_is_found(kind):
    made = world(3, 30, 4)
    place = noisy(made, kind)
    made.values[20:, place] += 15 * made.noise[place]
    (found,) = judged(made)
    assert (found.kind, (found.cell, found.stage, found.mode, found.metric)) == ("regression", made.keys[place][:4])
    assert abs(int(found.commits[1], 16) - 20) <= 1


def test_a_step_is_told_as_long_as_it_lasts_with_the_same_date():
    made = flat(60)
    made.values[14:, made.column(*FC_OUT)] += 0.05
    for night in (14, 15, 20, 40, 59):
        (found,) = judged(made, night)
        assert (found.kind, found.since_date, found.nights) == ("regression", made.date(14), night - 13)
    assert judged(made, 13) == []


def test_a_step_back_is_an_improvement_and_then_quiet():
    made = flat(50)
    made.values[14:20, made.column(*FC_OUT)] += 0.05
    (found,) = judged(made, 22)
    assert (found.kind, found.since_date) == ("improvement", made.date(20))
    assert found.before > found.after
    assert judged(made, 20 + RECENT) == []


def test_half_a_step_back_is_still_the_old_regression():
    made = flat(30)
    made.values[14:20, made.column(*FC_OUT)] += 0.10
    made.values[20:, made.column(*FC_OUT)] += 0.05
    (found,) = judged(made)
    assert (found.kind, found.since_date) == ("regression", made.date(14))
    assert found.after - found.before == pytest.approx(0.05)


def test_what_got_better_may_not_get_worse_again():
    made = flat(40)
    made.values[14:25, made.column(*FC_OUT)] -= 0.05
    (found,) = judged(made)
    assert (found.kind, found.since_date) == ("regression", made.date(25))


def test_a_fault_that_moves_a_whole_cell_is_one_change_at_its_first_stage():
    made = flat(20, 2)
    for place, (cell, stage, mode, *_) in enumerate(made.keys):
        if cell == CELL and ((mode == "chained" and stage >= "target.layers.2") or stage == "target.layers.2.attn_out"):
            made.values[15:, place] += 5
    (found,) = judged(made)
    assert (found.cell, found.stage, found.mode, found.since_date) == (
        CELL,
        "target.layers.2.attn_out",
        "local",
        made.date(15),
    )
    assert found.others > 20 and f"{found.others} more figures" in found.sentence


def test_another_order_of_sums_is_told_quietly_and_is_no_regression():
    made = flat(20)
    made.values[15:, made.column(*LOGITS)] += 0.5 * HALF_WIDTHS["l2"]["chained", "x noise"].absolute
    (found,) = verdicts(frame(made), made.name(19))
    assert (found.kind, found.since_date, found.commits) == ("moved", made.date(15), (made.commit(14), made.commit(15)))


def test_one_night_outside_is_an_outlier_where_nights_differ():
    made = world(3, 30, 4)
    place = noisy(made, "normal")
    made.values[29, place] += 30 * made.noise[place]
    assert judged(made) == []


def test_a_band_does_not_follow_a_slow_drift():
    made = world(3, 85, 2)
    place = noisy(made, "normal")
    made.values[:, place] += 0.15 * made.noise[place] * np.arange(85)
    (found,) = judged(made)
    assert found.kind == "drift" and (found.cell, found.stage, found.mode, found.metric) == made.keys[place][:4]


def test_slow_neighbours_are_no_drift():
    made = world(5, 40, 4)
    place = noisy(made, "neighbours")
    random = np.random.default_rng(0)
    for night in range(1, 40):
        made.values[night, place] = (
            0.7 * made.values[night - 1, place] + 0.3 * made.values[0, place] + made.noise[place] * random.normal()
        )
    assert judged(made) == []


def test_a_figure_that_creeps_within_the_least_width_is_no_drift():
    made = flat(30)
    made.values[:, made.column(*LOGITS)] += 0.9 * HALF_WIDTHS["l2"]["chained", "x noise"].absolute * np.arange(30) / 29
    assert judged(made) == []


def test_missing_nights_are_passed_over():
    made = world(3, 30, 2)
    place = made.column(*FC_OUT)
    made.values[:, place] = 0.9
    made.values[20:, place] = 1.0
    table = frame(made)
    lost = [made.name(night) for night in (3, 8, 19, 22)]
    table = table[~((table["cell"] == CELL) & table["night"].isin(lost))]
    (found,) = [one for one in verdicts(table, made.name(29)) if one.kind in LOUD]
    assert (found.since_date, found.commits, found.nights) == (made.date(20), (made.commit(18), made.commit(20)), 9)


def test_later_nights_are_not_looked_at():
    made = flat(30)
    made.values[20:, made.column(*FC_OUT)] += 0.05
    assert [one for one in verdicts(frame(made), made.name(19)) if one.kind in LOUD] == []
    with pytest.raises(UsageError, match="not in this history"):
        verdicts(frame(made), "20300101T000000.000")


def test_too_few_nights_are_no_verdict_and_say_how_many_more():
    made = flat(15)
    made.values[13:, made.column(*FC_OUT)] += 1.0
    assert judged(made, 13) == []
    assert waiting(frame(made, 13), made.name(13)) == {CELL: 1}
    assert waiting(frame(made, 14), made.name(14)) == {}


def test_acceptance_is_judged_by_its_interval():
    for loss, kinds in ((0.015, ["moved"]), (0.06, ["regression"])):
        made = flat(20)
        made.values[15:, made.column(CELL, "acceptance", "chained", "relative")] -= loss
        assert [one.kind for one in verdicts(frame(made), made.name(19))] == kinds


def test_speed_is_judged_as_a_share_of_the_baseline():
    for factor, kinds in ((0.93, []), (0.8, ["regression"]), (1.3, ["improvement"])):
        made = flat(20)
        made.values[15:, made.column(CELL, "speed", "", "over_baseline")] *= factor
        assert [one.kind for one in judged(made)] == kinds


def test_an_infinite_error_is_a_regression():
    made = flat(20)
    made.values[15:, made.column(*FC_OUT)] = np.inf
    (found,) = judged(made)
    assert found.kind == "regression" and found.since_date == made.date(15)


def test_the_band_of_a_figure_is_that_of_its_good_level():
    made = flat(20)
    place = made.column(*FC_OUT)
    made.values[15:, place] += 0.05
    held = Bands(frame(made), made.name(19))
    low, high = held.get(FC_OUT)
    assert (low + high) / 2 == pytest.approx(made.values[0, place]) and high - low == pytest.approx(0.002)
    assert held.get((CELL, "nowhere", "local", "l2")) is None
    assert Bands(frame(made), made.name(8)).get(FC_OUT) is None
