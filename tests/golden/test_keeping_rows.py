"""What is kept of a tensor, by hand: forms and widths, positions, the best, floors, and what options say of it."""

from __future__ import annotations

import numpy as np
import pytest

from parity.errors import UsageError
from parity.golden.case import KeptStages
from parity.golden.keeping import (
    Form,
    Keeping,
    Record,
    best,
    best_of,
    joined,
    log_sum_exp,
    packed,
    packed_floor,
    ranges,
)
from parity.golden.manifest import TensorRow, key
from parity.sketch import sketch
from parity.stages import declared

NAMES = declared(2, 1)
EMBED, LOGITS, ROUTER = "target.embed", "target.logits", "target.layers.1.router_logits"


def kept(stages: str, form: str, numbers: int, seed: int = 0) -> KeptStages:
    return KeptStages(stages=stages, form=form, numbers=numbers, seed=seed)


def test_a_row_has_so_many_columns():
    assert [Form(8, 1, 4).columns(floor) for floor in (False, True)] == [8 + 2 + 4 + 4 + 1, 4 + 4 + 1]
    assert [Form(8).columns(floor) for floor in (False, True)] == [10, 4]
    assert [Form(top=4).columns(floor) for floor in (False, True)] == [9, 9]
    assert not Form() and Form(1) and Form(top=1) and not Form(seed=3)


@pytest.mark.parametrize(
    ("stage", "shape", "form"),
    [
        (EMBED, (9, 19), Form(16, 5)),
        (EMBED, (9, 18), Form()),
        (EMBED, (9, 3, 7), Form(16, 5)),
        (EMBED, (9, 3, 6), Form()),
        (EMBED, (99,), Form()),
        (LOGITS, (1, 19), Form(16, 5, 6)),
        (LOGITS, (1, 14), Form(0, 0, 6)),
        (LOGITS, (1, 13), Form()),
        ("drafter.logits", (1, 19), Form(16, 5, 6)),
        (ROUTER, (9, 90), Form()),
        ("target.layers.1.experts", (9, 90), Form()),
        ("no.stage", (9, 90), Form()),
        ("target.layers.0.q", (9, 4, 90), Form(12, 7)),
    ],
)
def test_a_stage_is_kept_whole_where_that_takes_no_more_numbers(stage, shape, form):
    """The first of two that name a stage counts."""
    keep = Keeping(
        [kept("target.layers.0.*", "sketch", 12, 7), kept("*", "sketch", 16, 5), kept("*", "top", 6)], "", NAMES
    )
    assert keep.form(stage, shape) == form and keep


def test_nothing_is_less_than_whole_where_nothing_says_so():
    keep = Keeping([], "", NAMES)
    assert not keep and keep.form(EMBED, (9, 90)) == Form() and keep.count(7) == 7
    assert Keeping([], "3", NAMES)


@pytest.mark.parametrize(
    ("positions", "rows"),
    [("0", [0, 8, 9]), ("3-5", [3, 4, 5, 8, 9]), ("7-", [7, 8, 9]), ("0,2,4-4", [0, 2, 4, 8, 9]), ("99", [8, 9]),
     ("8", [8, 9]), ("0-99", [*range(10)]), ("", [*range(10)])],
)  # fmt: skip
def test_positions_are_those_named_and_the_last_two(positions, rows):
    keep = Keeping([], positions, NAMES)

    def held(stage=EMBED, start=0, count=10, round_=0, prompt=10) -> list[int]:
        row = TensorRow(
            key=key(0, round_, stage), variant="float32", axes=("S",), dtype="float32", shape=(count, 4), start=start,
            shard="", sha256="",
        )  # fmt: skip
        return keep.rows(row, prompt).tolist()

    assert held() == rows and keep.count(10) == len(rows)
    assert held("kv.target.0.k", 4, 6, 1) == [row for row in rows if row >= 4]
    whole = [*range(10)]
    assert held(ROUTER) == held("target.layers.1.experts") == held("no.stage") == held(round_=1) == whole
    assert held(count=1) == [0] and keep.count(1) == 1


@pytest.mark.parametrize(
    ("said", "found"),
    [("", ()), ("7", ((7, 7),)), ("0-15,40,100-", ((0, 15), (40, 40), (100, 2**31))), ("4-4", ((4, 4),))],
)
def test_ranges_are_inclusive(said, found):
    assert ranges(said) == found


@pytest.mark.parametrize("said", ["5-4", "0-3,9-8"])
def test_a_range_that_ends_before_it_begins_is_named(said):
    with pytest.raises(UsageError, match=rf"^--positions {said.split(',')[-1]}: the range ends before it begins$"):
        ranges(said)


@pytest.mark.parametrize("said", ["-4", "4,", "a", "123456789", "1 2", "x" * 200])
def test_what_is_no_range_is_told_in_eighty_letters(said):
    with pytest.raises(UsageError) as refused:
        ranges(said)
    words = "it takes positions and ranges of a prompt, as in 0-15,40,100-"
    assert str(refused.value) == f"--positions {said[:80]!r}: {words}"


def test_the_best_are_by_value_then_by_id_and_what_is_not_finite_comes_last():
    ids, values, total = best(np.array([[1, np.nan, 3, 3, np.inf, 2], [0, 0, 0, 0, 0, 0]], np.float32), 3)
    assert ids.tolist() == [[2, 3, 5], [0, 1, 2]] and values.tolist() == [[3, 3, 2], [0, 0, 0]]
    assert np.isnan(total[0]) and total[1] == pytest.approx(np.log(6))
    assert best(np.array([[1.0, 2.0]]), 2)[0].tolist() == [[1, 0]] and best(np.array([[1.0, 2.0]]), 1)[0].tolist() == [
        [1]
    ]
    assert log_sum_exp(np.array([[1000.0, 1000.0]])) == pytest.approx(1000 + np.log(2))


ROWS = np.array([[0.5, 3, -1, 2], [1, 1, 4, 0]], np.float32)


def test_a_sketch_stands_before_the_best_and_the_best_are_read_again():
    both = packed(Form(3, 1, 2), ROWS)
    assert both.dtype == np.float32 and both[:, :5].tolist() == sketch(ROWS, 3, 1).tolist()
    assert both[:, 5:9].tolist() == [[1, 3, 3, 2], [2, 0, 4, 1]]
    assert both[:, 9] == pytest.approx(np.log(np.exp(ROWS).sum(axis=1)))
    for form, rows in ((Form(3, 1, 2), both), (Form(top=2), both[:, 5:])):
        ids, values, total = best_of(Record(np.arange(2), rows, form))
        assert ids.tolist() == [[1, 3], [2, 0]] and values.tolist() == [[3, 2], [4, 1]]
        assert total.tolist() == both[:, 9].tolist()
    assert packed(Form(3, 1), ROWS).tolist() == sketch(ROWS, 3, 1).tolist()
    odd = np.array([[np.inf, -np.inf, 1, 2, 3], [np.nan, 2, 1, 2, 3]], np.float32)
    assert best_of(Record(np.arange(2), odd, Form(top=2)))[0].tolist() == [[0, 0], [0, 2]]


def test_a_floor_is_kept_as_the_sums_of_its_error():
    floor = ROWS + np.array([[0, 1, 0, -2], [0, 0, 0, 0.5]], np.float32)
    sums = packed_floor(Form(3), ROWS, floor)
    assert sums.tolist() == [[np.float32(5**0.5), 3 - 4, -1, 2], [0.5, 0, 0.5, 0.5]] and sums.dtype == np.float32
    both = packed_floor(Form(3, 0, 2), ROWS, floor)
    assert both[:, :4].tolist() == sums.tolist() and both[:, 4:6].tolist() == [[4, 0], [4, 1]]
    assert both[:, 6] == pytest.approx(np.log(np.exp(floor).sum(axis=1)))
    assert packed_floor(Form(3), ROWS.reshape(2, 2, 2), floor.reshape(2, 2, 2)).tolist() == sums.tolist()


def test_records_are_taken_by_mask_found_by_number_and_joined():
    record = Record(np.array([3, 4, 7]), np.array([[3], [4], [7]]), Form(5))
    assert record.take(np.array([True, False, True])).index.tolist() == [3, 7]
    assert record.take(np.array([-1])).rows.tolist() == [[7]] and record.take(np.array([0])).form == Form(5)
    assert record.at(np.array([4, 7])).tolist() == [[4], [7]]
    both = joined([record, Record(np.array([9]), np.array([[9]]), Form(5))])
    assert (both.index.tolist(), both.rows.tolist(), both.form) == ([3, 4, 7, 9], [[3], [4], [7], [9]], Form(5))
