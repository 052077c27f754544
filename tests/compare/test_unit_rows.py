"""Units by hand: their labels, which are wrong, which are near; and the step from a row to what it holds."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare import origins, units
from parity.compare.origins import HeldInstead, Step, _many, _Search
from parity.compare.rows import HALF_ULP, StageRows
from parity.compare.units import Units, parts_of, relative_errors, wrong_rows
from parity.stages import declared

NAMES = declared(2, 1)
OUT, FFN, Q, TAPS, IDS = "target.layers.0.out", "target.layers.0.ffn_out", "target.layers.0.q", "drafter.taps", (
    "drafter.input_ids"
)  # fmt: skip


def rows_of(name: str, golden, device=None, floor=None, prompt=None, round_=None, position=None) -> StageRows:
    golden = np.asarray(golden)
    number = np.arange(len(golden))
    given = (number * 0 if one is None else np.array(one) for one in (prompt, round_))
    position = number + 5 if position is None else np.array(position)
    floor = None if NAMES[name].stage.exact else golden * 1.01 if floor is None else np.asarray(floor)
    return StageRows(NAMES[name], golden, golden if device is None else np.asarray(device), floor, *given, position)


RANDOM = np.random.default_rng(0)
VALUES = RANDOM.normal(size=(5, 8)).astype(np.float32)


def test_a_unit_is_labelled_by_stage_place_number_in_its_pass_and_part():
    first = rows_of(OUT, VALUES, prompt=[0, 0, 0, 1, 1], round_=[0, 0, 1, 1, 1])
    second = rows_of(Q, np.zeros((2, 2, 8), np.float32), prompt=[3, 3], position=[9, 10])
    found = Units.of([(first, 1), (second, 2)], "golden")
    assert found.labels.tolist() == [
        [0, 0, 0, 5, 0, -1], [0, 0, 0, 6, 1, -1], [0, 0, 1, 7, 0, -1], [0, 1, 1, 8, 0, -1], [0, 1, 1, 9, 1, -1],
        [1, 3, 0, 9, 0, 0], [1, 3, 0, 9, 0, 1], [1, 3, 0, 10, 1, 0], [1, 3, 0, 10, 1, 1],
    ]  # fmt: skip
    assert found.stages == (OUT, Q) and found.values.shape == (9, 8)
    assert found.noise[:5] == pytest.approx([0.01] * 5, rel=1e-5) and found.noise[5:].tolist() == [0] * 4


def test_a_units_values_are_the_sides_own_and_no_larger_than_squares_allow():
    rows = rows_of(OUT, VALUES, VALUES * 2)
    assert (Units.of([(rows, 1)], "device").values == VALUES * 2).all()
    huge = rows_of(OUT, np.full((1, 2), 1e20, np.float32), np.full((1, 2), -1e20, np.float32))
    assert Units.of([(huge, 1)], "golden").values.tolist() == [[np.float32(1e15)] * 2]
    assert Units.of([(huge, 1)], "device").values.tolist() == [[np.float32(-1e15)] * 2]
    ids = rows_of(IDS, np.array([2**53 + 1]))
    assert Units.of([(ids, 1)], "golden").values.tolist() == [[2**53 + 1]]


def test_an_error_is_relative_and_of_a_row_of_zeros_as_it_is():
    golden = np.float32([[3, 4], [0, 0], [0, 2]])
    assert relative_errors(golden, golden + np.float32([[0, 1], [3, 4], [0, 0]])).tolist() == pytest.approx([0.2, 5, 0])
    assert relative_errors(golden * 0.1, golden * 0.1 + np.float32([[0, 0.1], [0, 0], [0, 0]]))[0] == pytest.approx(0.2)
    cube = np.ones((2, 2, 2))
    assert relative_errors(cube, cube * 2).tolist() == [1, 1]


def test_a_row_is_wrong_beyond_three_times_its_noise_or_float32s_rounding():
    noise = np.array([0.01, 0.01, 0.04])
    error = np.array([0.031, 0.029, 0.1])
    assert wrong_rows(error, noise, "bfloat16").tolist() == [True, False, False]
    assert wrong_rows(error, noise, "bfloat16", 0.5).tolist() == [True, True, True]
    assert wrong_rows(np.array([0.9e-4, 1.1e-4, 0]), noise, "float32").tolist() == [False, True, False]
    assert wrong_rows(np.array([2.9 * HALF_ULP, 3.1 * HALF_ULP]), np.zeros(2), "bfloat16").tolist() == [False, True]


def test_units_are_compared_by_noise_and_ids_by_their_value():
    device = VALUES.copy()
    device[1] *= 1.5
    rows = rows_of(OUT, VALUES, device)
    own, shown = (Units.of([(rows, 1)], side) for side in ("golden", "device"))
    assert own.wrong(shown, "bfloat16").tolist() == [False, True, False, False, False]
    ids = rows_of(IDS, [1, 2, 3], [1, 2, 4])
    own, shown = (Units.of([(ids, 1)], side) for side in ("golden", "device"))
    assert own.wrong(shown, "bfloat16").tolist() == [False, False, True]
    assert [found.tolist() for found in own.equal(np.array([[3], [9], [1]]))] == [[2], [], [0]]


def near(given, own, floor=None, values=VALUES) -> list[list[int]]:
    pool = Units.of([(rows_of(OUT, values, floor=floor), 1)], "golden")
    return [found.tolist() for found in pool.near(np.float32(given), np.float32(own))]


def test_a_row_holds_what_it_is_within_the_noise_of_and_far_nearer_to_than_its_own():
    """The noise of each row is a hundredth."""
    size = np.linalg.norm(VALUES[2])
    aside = np.zeros(8, np.float32)
    aside[0] = size
    for off, found in ((0, [2]), (0.029, [2]), (0.031, [])):
        assert near([VALUES[2] + off * aside], [VALUES[0]]) == [found]
    assert near([VALUES[2]] * 2, [VALUES[2] + 0.01 * aside, VALUES[0]]) == [[2], [2]]
    for apart, found in ((0.19, []), (0.21, [2])):  # of 0.05 the fourth part is 0.0125
        assert near([VALUES[2] + 0.02 * aside], [VALUES[2] + (0.02 - apart / 2.5) * aside]) == [found]
    assert near([VALUES[2] * 0], [VALUES[0]]) == [[]]
    both = np.concatenate([VALUES, VALUES[2:3], VALUES[:1] * 0])
    assert near([VALUES[2]], [VALUES[0]], values=both, floor=both * 1.01) == [[2, 5]]


def test_however_wide_the_noise_a_row_that_is_ten_per_cent_off_is_another():
    wide, aside = VALUES * 1.2, np.zeros(8, np.float32)
    aside[0] = np.linalg.norm(VALUES[2])
    for off, found in ((0.09, [2]), (0.11, [])):
        assert near([VALUES[2] + off * aside], [VALUES[0]], floor=wide) == [found]


def test_rows_are_compared_in_pieces_as_at_once(monkeypatch):
    given = VALUES[[2, 0, 4, 1]]
    assert near(given, VALUES[[0, 1, 1, 0]]) == [[2], [0], [4], [1]]
    monkeypatch.setattr(units, "max", lambda *of: 3, raising=False)
    assert near(given, VALUES[[0, 1, 1, 0]]) == [[2], [0], [4], [1]]


def test_a_stage_has_as_many_parts_as_heads_or_taps():
    wide = SimpleNamespace(shape=(3, 4))
    golden = SimpleNamespace(
        declared=NAMES, rows={("bfloat16", 0, 0, OUT): 1, ("float32", 0, 0, OUT): 1}, stored=lambda *place: wide
    )
    assert parts_of(golden, rows_of(Q, np.zeros((2, 3, 8)))) == 3
    assert (
        parts_of(golden, rows_of(TAPS, np.zeros((2, 12)))) == 3
        and parts_of(golden, rows_of(TAPS, np.zeros((2, 10)))) == 1
    )
    assert parts_of(golden, rows_of(OUT, np.zeros((2, 8)))) == 1
    nothing = SimpleNamespace(declared=NAMES, rows={}, stored=lambda *place: None)
    assert parts_of(nothing, rows_of(TAPS, np.zeros((2, 12)))) == 1


@pytest.mark.parametrize(
    ("simpler", "other"),
    [
        (Step(0, 0, 0, -3, 0), Step(0, 0, 0, 0, 0, fixed=True)),
        (Step(0, 0, 0, 5, 0), Step(1, 0, 0, 0, 0)),  # this stage before another
        (Step(1, 0, 0, 9, 0), Step(1, 0, 1, 1, 0)),  # one difference before two
        (Step(0, 0, 0, 1, 0), Step(0, 0, 0, -2, 0)),  # near before far
        (Step(0, 0, 0, 0, 2), Step(0, 0, 0, 0, -3)),
        (Step(0, 1, 0, 0, 0), Step(0, -2, 0, 0, 0)),
        (Step(0, 0, 1, 0, 0), Step(0, 0, 2, 0, 0)),
        (Step(0, 0, 0, 1, 0), Step(0, 0, 0, 1, 0, by_index=True)),
    ],
)
def test_the_simplest_step_says_the_most(simpler, other):
    assert simpler.simple > other.simple


def test_what_is_held_is_by_all_or_by_most():
    assert HeldInstead("x", 1.0).by_all and HeldInstead("x", 1.0).by_most and str(HeldInstead("x", 0.5)) == "x"
    assert not HeldInstead("x", 0.99).by_all and HeldInstead("x", 0.9).by_most and not HeldInstead("x", 0.89).by_most


@pytest.mark.parametrize(
    ("number", "what", "said"),
    [(1, "position", "1 position"), (-2, "position", "2 positions"), (3, "place in its pass", "3 places in its pass"),
     (-1, "place in its pass", "1 place in its pass")],
)  # fmt: skip
def test_a_number_of_things_is_told_in_the_plural(number, what, said):
    assert _many(number, what) == said


def search(golden, device, name: str = FFN, parts: int = 1, pool=None, monkeypatch=None, **labels) -> _Search:
    """Over one stage alone, or over this one and others."""
    rows = rows_of(name, golden, device, **labels)
    run = SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(mode="local", precision="bfloat16")))
    given = [(rows, parts), *((one, 1) for one in pool or ())]
    monkeypatch.setattr(origins, "alike", lambda *of: given)
    golden = SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(prompts=range(2))))
    return _Search(golden, run, rows, parts)


TEN = RANDOM.normal(size=(10, 8)).astype(np.float32)


def told(device, monkeypatch, golden=TEN, **more) -> str:
    return str(search(golden, device, monkeypatch=monkeypatch, **more).told() or "")


def test_a_step_that_every_row_shares_is_told(monkeypatch):
    assert told(TEN, monkeypatch) == ""
    assert told(np.roll(TEN, 1, axis=0), monkeypatch) == "9 of 10 wrong rows hold what belongs 1 position before"
    # Eight of ten are no nine in ten, and half of them at the least.
    assert told(np.roll(TEN, -2, axis=0), monkeypatch) == "8 of 10 wrong rows hold what belongs 2 positions behind"
    one = TEN.copy()
    one[7] = TEN[3]
    assert told(one, monkeypatch) == "the wrong row holds what belongs 4 positions before"
    one[6] = TEN[2]
    assert told(one, monkeypatch) == "all 2 wrong rows hold what belongs 4 positions before"


def test_zeros_are_told_before_anything_else(monkeypatch):
    zeros = np.where(np.arange(10)[:, None] < 9, 0, TEN)
    assert told(zeros, monkeypatch) == "all 9 wrong rows hold zeros"
    zeros[9] = 7
    assert told(zeros, monkeypatch) == "9 of 10 wrong rows hold zeros"
    zeros[8] = 7
    assert told(zeros, monkeypatch) == ""


def test_another_stages_row_and_a_fixed_place_are_told(monkeypatch):
    other = rows_of(OUT, RANDOM.normal(size=(10, 8)).astype(np.float32))
    assert told(other.golden, monkeypatch, pool=[other]) == f"all 10 wrong rows hold the same row of {OUT}"
    assert told(np.roll(other.golden, -1, axis=0), monkeypatch, pool=[other]) == (
        f"9 of 10 wrong rows hold {OUT}, 1 position behind"
    )
    fixed = np.repeat(TEN[3:4], 10, axis=0)
    said = "all 9 wrong rows hold what belongs at position 8 of round 0, prompt 0"
    assert told(fixed, monkeypatch) == said


def test_rounds_and_places_in_a_pass_are_told_where_positions_do_not_explain(monkeypatch):
    """Two rounds of five rows whose positions lie three apart."""
    labels = dict(round_=[0] * 5 + [1] * 5, position=[*range(5), *range(3, 8)])
    device = TEN.copy()
    device[5:] = TEN[:5]
    assert told(device, monkeypatch, **labels) == "all 5 wrong rows hold what belongs 1 round before"
    device = TEN.copy()
    device[5:8] = TEN[3:0:-1]
    assert told(device, monkeypatch, **labels) == (
        "all 3 wrong rows hold others' values, the one at position 3 of round 1, prompt 0 what belongs at position 3 "
        "of round 0, prompt 0"
    )


def test_ids_tell_a_step_where_there_are_enough_of_them(monkeypatch):
    ids = np.arange(10, 20)
    assert told(ids + 1, monkeypatch, golden=ids, name=IDS) == "9 of 10 wrong rows hold what belongs 1 position behind"
    few = np.array([1, 2, 3] * 3)
    assert told(np.roll(few, 1), monkeypatch, golden=few, name=IDS) == ""


def test_what_the_device_kept_of_an_earlier_round_is_told_bit_for_bit(monkeypatch):
    labels = dict(round_=[0] * 5 + [1] * 5, position=list(range(10)))
    device = TEN * np.float32(2)
    device[5:] = device[:5]
    assert told(device, monkeypatch, **labels) == (
        "5 of 10 wrong rows hold what belongs 1 round before, as the device itself showed it"
    )
    device[5:] *= np.float32(1 + 2.0**-22)
    assert told(device, monkeypatch, **labels) == ""


def test_heads_that_are_exchanged_are_told_one_by_one(monkeypatch):
    golden = RANDOM.normal(size=(6, 2, 8)).astype(np.float32)
    said = told(golden[:, ::-1], monkeypatch, golden=golden, name=Q, parts=2)
    assert said == (
        "all 12 wrong heads hold others' values: head 0 what belongs 1 head behind; head 1 what belongs 1 head before"
    )


def test_of_many_wrong_rows_some_are_looked_at(monkeypatch):
    monkeypatch.setattr(origins, "MOST", 4)
    assert told(np.zeros_like(TEN), monkeypatch) == "all 4 wrong rows looked at (10 in all) hold zeros"


def alike_of(monkeypatch, first: str, shape: tuple[int, ...], width: int, **held: tuple[int, ...]) -> list:
    """Stages that are searched, with their parts; `held` are the shapes of the golden's tensors by name."""
    made = {name.replace("__", "."): np.zeros(size, np.float32) for name, size in held.items()}
    golden = SimpleNamespace(declared={name: NAMES[name] for name in (*made, first)})
    asked = []

    def stage_rows(golden, run, named, **how):
        asked.append((golden is run, how))
        return rows_of(named.name, made[named.name]) if named.name in made else None

    monkeypatch.setattr(units, "stage_rows", stage_rows)
    found = [(rows.named.name, parts) for rows, parts in units.alike(golden, NAMES[first], shape, width, "local")]
    assert set(map(str, asked)) <= {str((True, {"device": "float32", "mode": "local"}))}
    return found


def test_stages_of_rows_of_so_many_numbers_are_searched_the_own_first(monkeypatch):
    held = {"target__layers__0__ffn_out": (2, 8), "target__layers__0__out": (3, 8), "target__layers__1__q": (2, 2, 4)}
    held |= {"target__embed": (2, 7), "target__tokens": (9,), "target__layers__1__out": (2, 8)}
    assert alike_of(monkeypatch, FFN, (8,), 8, **held) == [
        (FFN, 1), (OUT, 1), ("target.layers.1.q", 1), ("target.layers.1.out", 1),
    ]  # fmt: skip
    assert alike_of(monkeypatch, IDS, (), 1, drafter__input_ids=(4,), target__embed=(2, 1)) == [(IDS, 1)]
    heads = {"target__layers__0__q": (2, 2, 4), "target__layers__0__k": (2, 1, 4), "target__layers__0__out": (2, 8)}
    found = alike_of(monkeypatch, Q, (2, 4), 4, **heads)
    assert found == [(Q, 2), ("target.layers.0.k", 1)]


@pytest.mark.parametrize(("room", "searched"), [(40, 2), (39, 1), (16, 1), (15, 0), (1000, 2)])
def test_so_many_numbers_are_searched_at_the_most(room, searched, monkeypatch):
    monkeypatch.setattr(units, "VALUES", room)
    held = {"target__layers__0__ffn_out": (2, 8), "target__layers__0__out": (3, 8)}
    assert len(alike_of(monkeypatch, FFN, (8,), 8, **held)) == searched


def test_labels_begin_anew_with_every_pass_the_first_one_included():
    rows = rows_of(OUT, np.zeros((4, 1)), prompt=[0, 0, 0, 1], round_=[0, 0, 1, 0], position=[0, 1, 2, 0])
    assert units._labels(rows, 3, 1)[:, 4].tolist() == [0, 1, 0, 0]
    assert units._labels(rows, 3, 1)[:, 0].tolist() == [3] * 4
