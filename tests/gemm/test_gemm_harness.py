"""The harness passes what is rounded honestly, in any order, and turns red for every broken multiplication here."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from parity import device
from parity.gemm.errors import COLUMNS, piece_slices, pieces, sequential
from parity.gemm.harness import SUMS, GemmReport, bfloat16_ulp, try_gemm
from parity.seam import Gemm

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
LIMIT = 1 << 27
SQUARE, WIDE, BATCHED = Gemm(7, 288, 288), Gemm(5, 96, 1300), Gemm(4, 96, 160, 6)
SCORES = Gemm(10, 32, 192, 4, dtype="float32")
FLOAT32 = Gemm(6, 200, 90, dtype="float32", values="float32")
SHAPES = (SQUARE, WIDE, BATCHED, SCORES, FLOAT32, Gemm(1, 64, 50), Gemm(1, 1, 1), Gemm(5, 96, 6, dtype="float32"))


def wide(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.matmul(left.astype(np.float32), right.astype(np.float32))


def to(dtype: str, value: np.ndarray) -> np.ndarray:
    return value.astype(BFLOAT16 if dtype == "bfloat16" else np.float32)


def honest(left, right, dtype):
    return to(dtype, wide(left, right))


def backwards(left, right, dtype):
    return to(dtype, wide(left[..., ::-1], right[..., ::-1, :]))


def blocked(left, right, dtype):
    parts = range(0, left.shape[-1], 32)
    return to(dtype, sum(wide(left[..., at : at + 32], right[..., at : at + 32, :]) for at in parts))


def in_float64(left, right, dtype):
    return (
        np.matmul(left.astype(np.float64), right.astype(np.float64))
        .astype(np.float32)
        .astype(to(dtype, left[:0]).dtype)
    )


@pytest.mark.parametrize("multiply", [honest, backwards, blocked, in_float64, device.multiply])
@pytest.mark.parametrize("gemm", SHAPES, ids=str)
def test_an_honest_multiplication_passes_in_any_order(gemm, multiply):
    found = try_gemm(gemm, multiply, 0, LIMIT)
    assert found.verdict == "pass" and not found.why, found
    assert found.max_ulp <= 0.51 and found.judged > 0


def bfloat16_accumulator(left, right, dtype):
    total = np.zeros(np.matmul(left[..., :1], right[..., :1, :]).shape, BFLOAT16)
    for at in range(left.shape[-1]):
        total = (total + wide(left[..., at : at + 1], right[..., at : at + 1, :]).astype(BFLOAT16)).astype(BFLOAT16)
    return to(dtype, total)


def bfloat16_partial_sums(left, right, dtype):
    half = left.shape[-1] // 2
    parts = [wide(left[..., :half], right[..., :half, :]), wide(left[..., half:], right[..., half:, :])]
    return to(dtype, sum(part.astype(BFLOAT16).astype(np.float32) for part in parts))


def truncated(left, right, dtype):
    bits = np.ascontiguousarray(wide(left, right)).view(np.uint32) & np.uint32(0xFFFF0000)
    return to(dtype, bits.view(np.float32))


def columns_of_the_last_tile_missing(left, right, dtype):
    result = wide(left, right)
    result[..., result.shape[-1] // 56 * 56 :] = 0
    return to(dtype, result)


def row_of_the_last_tile_missing(left, right, dtype):
    result = wide(left, right)
    result[..., -1, :] = result[..., 0, :]
    return to(dtype, result)


def end_of_the_sum_missing(left, right, dtype):
    whole = (left.shape[-1] - 1) // 32 * 32
    return to(dtype, wide(left[..., :whole], right[..., :whole, :]))


def saturating(left, right, dtype):
    return to(dtype, np.clip(wide(left, right), -65504, 65504))


def through_float16(left, right, dtype):
    with np.errstate(over="ignore"):
        return to(dtype, wide(left, right).astype(np.float16).astype(np.float32))


def not_a_number(left, right, dtype):
    result = wide(left, right)
    result[..., 0, 0] = np.nan
    return to(dtype, result)


def one_element_off(left, right, dtype):
    result = wide(left, right)
    end = result[..., -1, -60:]  # a view of what is judged one by one
    end.flat[np.argmax(np.abs(end))] *= 1.02
    return to(dtype, result)


BROKEN = (
    *(bfloat16_accumulator, bfloat16_partial_sums, truncated, columns_of_the_last_tile_missing, saturating),
    *(row_of_the_last_tile_missing, end_of_the_sum_missing, through_float16, not_a_number, one_element_off),
)


@pytest.mark.parametrize("multiply", BROKEN)
@pytest.mark.parametrize("gemm", [SQUARE, WIDE, BATCHED, FLOAT32, Gemm(8, 96, 96, dtype="float32")], ids=str)
def test_a_broken_multiplication_is_red(gemm, multiply):
    found = try_gemm(gemm, multiply, 0, LIMIT)
    assert found.verdict == "fail" and found.why, found


def test_a_transposed_square_weight_is_red():
    found = try_gemm(SQUARE, lambda left, right, dtype: honest(left, right.T, dtype), 0, LIMIT)
    assert found.verdict == "fail" and found.noise > 100


def test_a_float32_operand_cast_to_bfloat16_is_red():
    narrow = lambda left, right, dtype: honest(left.astype(BFLOAT16), right.astype(BFLOAT16), dtype)  # noqa: E731
    found = try_gemm(FLOAT32, narrow, 0, LIMIT)
    assert found.verdict == "fail" and found.noise > 100
    assert try_gemm(SCORES, narrow, 0, LIMIT).verdict == "pass", "values that are bfloat16 lose nothing"


@pytest.mark.parametrize("seed", range(4))
def test_a_wrong_tile_between_the_judged_columns_is_red_by_its_sums(seed):
    gemm = Gemm(4, 96, 30000)

    def stale(left, right, dtype):
        result = honest(left, right, dtype)
        inner = right.shape[-1] // 2
        result[:, inner : inner + 16] = result[:, inner - 18 : inner - 2]  # of the same scales
        return result

    found = try_gemm(gemm, stale, seed, LIMIT)
    assert found.judged < gemm.m * gemm.n and found.verdict == "fail" and found.sums > 2 * SUMS


@pytest.mark.parametrize("gemm", [Gemm(200, 64, 90), Gemm(5, 64, 90, 9)], ids=str)
def test_a_wrong_row_or_member_between_the_judged_ones_is_red_by_its_sums(gemm):
    def swapped(left, right, dtype):
        result = honest(left, right, dtype)
        middle = len(result) // 2
        result[middle - 1 : middle + 1] = result[middle - 1 : middle + 1][::-1].copy()
        return result

    seeds = [try_gemm(gemm, swapped, seed, LIMIT) for seed in range(4)]
    assert all(found.verdict == "fail" and "sums" in found.why for found in seeds)
    assert any("noise" not in found.why for found in seeds), "not judged one by one under some seed"


@pytest.mark.parametrize(
    ("multiply", "word"),
    [
        (lambda left, right, dtype: wide(left, right), "returned float32"),
        (lambda left, right, dtype: honest(left, right, dtype)[..., :-1], "returned bfloat16"),
        (
            lambda left, right, dtype: (_ for _ in ()).throw(RuntimeError("No feasible kernel found")),
            "No feasible kernel",
        ),
    ],
)
def test_what_returns_no_such_result_is_red(multiply, word):
    found = try_gemm(SQUARE, multiply, 0, LIMIT)
    assert found.verdict == "fail" and word in found.why and not found.judged


def test_no_shape_at_all_is_inconclusive():
    assert GemmReport("numpy", 0, ()).verdict == "inconclusive"


def test_the_floor_of_a_bfloat16_result_is_its_rounding():
    left, right = next((one.left, one.right) for one in pieces(Gemm(4, 2880, 60), 0, LIMIT))
    exact = left.astype(np.float64) @ right.astype(np.float64)
    relative = [
        np.abs(one - exact) / np.abs(exact)
        for one in (sequential(left, right).astype(BFLOAT16), exact.astype(BFLOAT16))
    ]
    assert np.sqrt(np.mean(relative[0] ** 2)) == pytest.approx(np.sqrt(np.mean(relative[1] ** 2)), rel=0.01)


@pytest.mark.parametrize("limit", [1, 500, 4000, LIMIT])
@pytest.mark.parametrize("gemm", [WIDE, BATCHED], ids=str)
def test_pieces_are_the_whole_shape(gemm, limit):
    seen = np.zeros((gemm.batch, gemm.n), int)
    for batch, columns in piece_slices(gemm, limit):
        seen[batch, columns] += 1
    assert (seen == 1).all()


def test_a_shape_in_pieces_is_judged_in_all_of_them_and_says_so():
    whole, cut_up = (try_gemm(WIDE, honest, 0, limit) for limit in (LIMIT, 96 * 200))
    assert (whole.pieces, cut_up.pieces) == (1, 7) and cut_up.judged > whole.judged
    broken = lambda left, right, dtype: honest(left, right, dtype) * (1 if right.shape[-1] == 200 else 0)  # noqa: E731
    assert try_gemm(WIDE, broken, 0, 96 * 200).verdict == "fail", "the last piece has 100 columns"


def test_operands_are_those_of_the_seed():
    one, same, other = (next(pieces(WIDE, seed, LIMIT)) for seed in (0, 0, 1))
    assert np.array_equal(one.left, same.left) and np.array_equal(one.right, same.right)
    assert not np.array_equal(one.right, other.right)


def test_rows_reach_beyond_float16():
    (piece,) = pieces(WIDE, 0, LIMIT)
    result = np.abs(honest(piece.left, piece.right, "bfloat16").astype(np.float32))
    assert result.max() > 65504 and np.median(result) < 65504 and WIDE.n > COLUMNS


def test_ulp_of_bfloat16():
    for value in (1.0, 1.99, 2.0, 0.3, 1e5):
        lower = np.float32(value).astype(BFLOAT16)
        assert bfloat16_ulp(np.array(value)) == float(
            np.nextafter(lower, BFLOAT16.type(np.inf)).astype(np.float64)
        ) - float(lower)


def over_its_operand(left, right, dtype):
    """As a kernel that pads or casts in place, and loses what it was given."""
    left[...] = 1
    return honest(left, right, dtype)


def test_what_overwrites_its_operands_is_judged_by_those_that_it_was_given():
    assert try_gemm(SQUARE, over_its_operand, 0, LIMIT).verdict == "fail"
