"""Each reading of a stage's wrong rows: found where it is true, with its place, and silent about noise and riddles."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from parity.diagnose.components import ENOUGH, _is_near
from parity.diagnose.components.elements import as_of_padding, in_elements
from parity.diagnose.components.products import in_products
from parity.diagnose.components.wrong import Component, preferred
from tests.diagnose.made_up_products import PRODUCT, WHOLE, by_other_weight
from tests.diagnose.made_up_rows import BIAS, GOLDEN, ROWS, WIDTH, in_columns, random, said, wrong

ELEMENTS = [
    (in_columns(GOLDEN, np.s_[64:96], 0.0), "columns 64-95 of 96: zeros"),
    (in_columns(GOLDEN, np.s_[90:96], -9984.0), "columns 90-95 of 96: -9984 everywhere"),
    (
        in_columns(GOLDEN, 3, [GOLDEN[0, 3], *GOLDEN[:-1, 95]]),
        "columns 3 of 96: the numbers of 92 columns behind of the",
    ),
    (in_columns(GOLDEN, np.s_[8:24], np.round(GOLDEN[:, 8:24])), "columns 8-23 of 96: rounded to multiples of 1"),
    (np.asarray(GOLDEN).astype(ml_dtypes.float8_e4m3fn).astype(np.float64), "4 significant bits are kept"),
    (GOLDEN * 1.05, "1.05 times as large"),
    (GOLDEN * (1 + 0.3 * BIAS), "each column has its own factor"),
    (GOLDEN * (1.5 + 0.3 * random(ROWS, 1, seed=2)), "each row has its own factor"),
    (GOLDEN + BIAS, "the same numbers in every row: a bias"),
    (GOLDEN.reshape(ROWS, 3, -1).swapaxes(1, 2).reshape(ROWS, WIDTH), "the numbers of other columns"),
    (in_columns(GOLDEN, np.s_[32:64], GOLDEN[:, :32]), "columns 32-63 of 96: the numbers of 32 columns before"),
]


@pytest.mark.parametrize(("device", "says"), ELEMENTS, ids=[says for _, says in ELEMENTS])
def test_what_elements_hold_is_said_with_its_columns(device, says):
    assert said(in_elements(wrong(GOLDEN, device))).startswith(says)


@pytest.mark.parametrize("device", [GOLDEN + 0.5 * random(ROWS, WIDTH, seed=3), np.tanh(GOLDEN)], ids=["noise", "tanh"])
def test_what_no_reading_fits_is_not_named(device):
    assert said([*in_elements(wrong(GOLDEN, device)), *in_products(wrong(GOLDEN, device), PRODUCT)]) == ""


def test_a_tenth_of_an_error_that_is_little_more_than_noise_is_no_explanation():
    off = wrong(GOLDEN, GOLDEN * 1.05)
    small = replace(off, device=off.golden + 1.2 * off.noise * random(*off.golden.shape, seed=7))
    tenth = small.error * 0.1
    assert small.judged("a tenth", tenth, 0) is None and small.judged("most of it", small.error * 0.6, 0).whole


def test_rows_within_noise_are_not_wrong():
    assert wrong(GOLDEN, GOLDEN) is None
    assert wrong(GOLDEN, np.where(np.arange(ROWS)[:, None] == 3, np.nan, GOLDEN)) is None


@pytest.mark.parametrize(("explained", "rest", "near"), [(0.49, 0.5, False), (0.5, 0.5, True), (0.49, None, False)])
def test_what_explains_less_than_half_is_no_part_whatever_it_leaves(explained, rest, near):
    """Of an error hardly above its noise the rest is within it whatever is said."""
    assert _is_near(Component("any", explained, rest)) is near


def test_what_makes_the_factors_of_rows_is_told_before_that_each_has_one():
    factors = np.abs(random(len(WHOLE), 1, seed=18)) + 0.5
    (told,) = [one for one in in_elements(wrong(WHOLE, WHOLE * factors)) if one and one.says.startswith("each row has")]
    maker = replace(told, says="what makes them", numbers=0)
    assert told.whole and preferred(told) < ENOUGH and preferred(maker) > preferred(told)


def test_few_rows_do_not_name_what_has_as_many_numbers():
    found = [
        *in_elements(wrong(GOLDEN[:2], GOLDEN[:2] + BIAS)),
        *in_products(wrong(WHOLE[:2], by_other_weight()[:2]), PRODUCT),
    ]
    assert said(found) == ""


@pytest.mark.parametrize(("explained", "rest", "whole"), [(0.96, None, True), (0.92, None, False), (0.92, 1.2, True)])
def test_what_one_row_of_ten_does_not_hold_is_not_all(explained, rest, whole):
    assert Component("rows hold another's", explained, rest).whole is whole


@pytest.mark.parametrize(
    ("factor", "width", "due"),
    [
        ((128 / 96) ** 0.5, 96, True),
        (1.25, 96, False),
        ((4096 / 2880) ** 0.5, 2880, True),
        (1.0, 64, False),
        (1.41, 64, False),
    ],
)
def test_a_factor_as_of_padded_columns_is_asked_where_it_comes_from(factor, width, due):
    assert as_of_padding(factor, width) == due
