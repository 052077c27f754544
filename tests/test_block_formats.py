"""Formats with a scale by block, beside numbers that are worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from parity.block_formats import block_formats

FORMATS = dict(block_formats())
FOURS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def test_mxfp4_keeps_the_numbers_of_four_bits_times_a_power_of_two():
    block = np.array([*FOURS, *(-one for one in FOURS)] * 2) * 2.0**-7
    assert np.array_equal(FORMATS["MXFP4"](block), block)


def test_the_scale_of_mxfp4_is_by_the_exponent_of_the_largest_number():
    block = np.zeros(32)
    block[:3] = 7.9, 1.3, 0.2
    assert FORMATS["MXFP4"](block)[:3].tolist() == [6.0, 1.5, 0.0]  # 7.9 is cut to the largest of scale 1


@pytest.mark.parametrize(("ties", "kept"), [("", 2.0), (", ties towards zero", 2.0), (", ties away from zero", 3.0)])
def test_what_lies_between_two_numbers_goes_where_the_format_says(ties, kept):
    block = np.zeros((1, 32))
    block[0, :3] = 4.0, 2.5, -2.5
    assert FORMATS[f"MXFP4{ties}"](block)[0, :3].tolist() == [4.0, kept, -kept]
    block[0, 1:3] = 1.25, 1.75  # to the even ones 1 and 2
    assert FORMATS["MXFP4"](block)[0, 1:3].tolist() == [1.0, 2.0]


def test_blocks_have_scales_of_their_own_and_the_last_may_not_be_full():
    values = np.concatenate([np.full(32, 6.0), np.full(7, 6.0 * 2.0**-9)])
    assert np.array_equal(FORMATS["MXFP4"](values), values)


def test_integers_by_group_are_whole_steps_of_the_groups_largest():
    values = np.zeros(64)
    values[0], values[1], values[32], values[33] = 7.0, 1.4, 0.7, 0.14
    assert np.allclose(FORMATS["int4 by group of 32"](values)[[0, 1, 32, 33]], [7.0, 1.0, 0.7, 0.1])
    assert np.allclose(FORMATS["int4 by group of 64"](values)[[0, 1, 32, 33]], [7.0, 1.0, 1.0, 0.0])


@pytest.mark.parametrize("name", FORMATS)
def test_a_block_of_zeros_stays_one_and_others_keep_their_shape(name):
    values = np.random.default_rng(0).standard_normal((3, 5, 70))
    values[1] = 0
    kept = FORMATS[name](values)
    assert kept.shape == values.shape and not kept[1].any() and not np.array_equal(kept, values)
    assert np.abs(kept - values).max() < 1.5  # MXFP4 cuts what is above 6 of 8
