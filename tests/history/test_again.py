"""Measured again within a night: steps are seen sooner, noise that a night holds is not mistaken for one."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import numpy as np
import pytest
from scipy import stats

from parity.history import append, load, suspicious, verdicts
from parity.history.repeats import MOST, floor
from parity.history.series import HALF_WIDTHS
from parity.history.statistics import chance
from parity.nightly.records import Night
from tests.history.synthetic import World, frame, night, results, world


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape)


@pytest.mark.parametrize("shift", [0.0, 1.0, 2.0])
def test_a_chance_is_mann_and_whitney_s(shift):
    past, drawn = random(20), np.random.default_rng(6).standard_normal(8) + shift
    found = stats.mannwhitneyu(drawn, past, alternative="greater", method="exact").pvalue
    assert chance(past, drawn) == pytest.approx(found) or (chance(past, drawn) == 1.0 and found > 0.4)


def test_what_is_above_all_the_past_has_the_chance_of_one_order_and_ties_count_against():
    past = np.arange(14.0)
    assert chance(past, np.full(16, 20.0)) == pytest.approx(1 / comb(30, 16))
    assert chance(past, np.full(16, 13.0)) > chance(past, np.full(16, 20.0))


def repeated(made: World, nights: dict[int, int]):
    """The table with so many repeats of the nights that are named, of every cell."""
    import pandas as pd

    whole = frame(made)
    tables = [whole]
    for number, count in nights.items():
        tonight = whole[whole["night"] == made.name(number)]
        tables += [tonight.assign(value=made.repeat(one, number), repeat=one + 1) for one in range(count)]
    return pd.concat(tables, ignore_index=True)


def noisiest(made: World, kind: str) -> int:
    own = [place for place, one in enumerate(made.kinds) if one == kind and made.keys[place][3] == "l2"]
    return max(own, key=lambda place: made.noise[place] / HALF_WIDTHS["l2"][made.keys[place][2], "x noise"].absolute)


def stepped(kind: str, size: float, after: int, repeats: bool, seed: int = 3) -> tuple[list, World, int]:
    """Regressions of the last night of thirty, a step of so many deviations so many nights old."""
    made = world(seed, 30, 3)
    place = noisiest(made, kind)
    made.plant(place, made.noise[place] * size * (np.arange(30) >= 30 - after))
    pairs = dict.fromkeys(range(2, 16), 1)
    table = repeated(made, pairs | dict.fromkeys(range(30 - after, 30), MOST) if repeats else pairs)
    return [one for one in verdicts(table, made.name(29)) if one.kind == "regression"], made, place


@pytest.mark.parametrize(
    ("kind", "size", "after"), [("normal", 5, 1), ("student", 5, 1), ("flips", 5, 1), ("normal", 3.5, 3)]
)
def test_repeats_show_a_step_that_nights_alone_do_not(kind, size, after):
    assert stepped(kind, size, after, repeats=False)[0] == []
    (found,), made, place = stepped(kind, size, after, repeats=True)
    assert (found.cell, found.stage, found.mode, found.metric) == made.keys[place][:4]
    assert abs(int(found.commits[1], 16) - (30 - after)) <= 2


def test_what_a_night_holds_is_not_mistaken_for_a_step():
    """Its repeats say the same sixteen times; they are one night."""
    assert stepped("neighbours", 6, 1, repeats=True)[0] == []


def test_a_step_that_repeats_showed_is_told_on_later_nights():
    made = world(4, 32, 3)
    place = noisiest(made, "normal")
    made.plant(place, 6.0 * made.noise[place] * (np.arange(32) >= 29))
    table = repeated(made, dict.fromkeys(range(2, 16), 1) | {29: MOST})
    for last in (29, 31):
        (found,) = [one for one in verdicts(table, made.name(last)) if one.kind == "regression"]
        assert found.since_date == made.date(29)


def test_a_harmless_change_that_repeats_is_none():
    made = world(3, 30, 3)
    place = max((one for one, kind in enumerate(made.kinds) if kind == "normal"), key=lambda one: -made.noise[one])
    _, _, mode, metric, unit = made.keys[place]
    made.plant(place, 0.9 * HALF_WIDTHS[metric][mode, unit].absolute * (np.arange(30) >= 29))
    table = repeated(made, dict.fromkeys(range(2, 16), 1) | {29: MOST})
    assert [one for one in verdicts(table, made.name(29)) if one.kind == "regression"] == []


def asked(made: World, past: dict[int, int], number: int, cell: int = 1) -> int:
    """How often a cell is measured again that night."""
    plan: Night = night(made, number)
    results_ = results(made, number)
    plan = plan.model_copy(update={"cells": tuple(one.cell for one in results_)})
    before = repeated(made, past)
    before = before[before["night"].isin([made.name(one) for one in range(number)])]
    mine = [results_[cell]]
    while len(mine) <= MOST and suspicious(before, plan, mine):
        values = made.repeat(len(mine) - 1, number)
        other = results(replace(made, values=np.tile(values, (made.nights, 1))), number)[cell]
        mine.append(other.model_copy(update={"repeat": len(mine)}))
    return len(mine) - 1


def test_a_cell_is_measured_again_to_learn_then_only_when_it_looks_changed():
    made = world(3, 30, 3)
    pairs = dict.fromkeys(range(2, 16), 1)
    assert asked(made, {}, 1) == 0, "who runs a night or two is not made to wait"
    assert asked(made, {}, 5) == 1
    assert asked(made, {2: 1, 3: 1, 4: 1}, 5, cell=0) == 0, "a cell that repeats bit for bit has told"
    place = noisiest(made, "normal")
    cell = sorted({key[0] for key in made.keys}).index(made.keys[place][0])
    made.values[29] = made.level[29]
    assert asked(made, pairs, 29, cell) <= 1, "the chance of a hundred figures"
    made.plant(place, 6.0 * made.noise[place] * (np.arange(30) >= 29))
    assert 4 <= asked(made, pairs, 29, cell) <= MOST


def test_repeats_are_kept_beside_their_night_and_shown_on_demand(tmp_path):
    made = world(1, 4, 2)
    first = results(made, 0)
    append(str(tmp_path), night(made, 0), [*first, first[0].model_copy(update={"repeat": 1})])
    assert set(load(str(tmp_path))["repeat"]) == {0}
    table = load(str(tmp_path), repeats=True)
    assert set(table[table["repeat"] == 1]["cell"]) == {first[0].cell.name}
    assert len(load(str(tmp_path))) == len(table[table["repeat"] == 0])


def test_an_effect_that_a_night_may_have_is_a_share_of_its_deviation():
    assert floor(1368) == pytest.approx(stats.norm.isf(1 / 3000 / 1368) * np.sqrt(1 / 5))
