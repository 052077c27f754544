"""Each reading of a product: the part that is wrong is found, and nothing where none is."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from parity.block_formats import nearest_codes
from parity.diagnose.clock import TimeIsUp
from parity.diagnose.components.faint import in_faint_changes, in_faint_parts
from parity.diagnose.components.products import in_products
from parity.diagnose.components.roundings import _formats, in_roundings
from parity.diagnose.components.sums import in_sums
from parity.diagnose.components.weights import _dealt, in_weights
from parity.diagnose.components.wrong import WrongRows
from tests.diagnose.made_up_products import (
    PRODUCT,
    WHOLE,
    Toy,
    W,
    X,
    by_column,
    by_other_weight,
    by_the_weight_of_layer_3,
    entered_otherwise,
    in_fp8_but_for_the_last_head,
    in_order,
    of_the_next_row,
    without,
    without_columns,
)
from tests.diagnose.made_up_rows import GOLDEN, ROWS, WIDTH, bfloat16, random, rows_of, said, wrong

EXCHANGED = [*range(48, 64), *range(16, 48), *range(16), 64]


PRODUCTS = {
    "head 2 is missing": without(32, 48),
    "head 1 counts twice": without(16, 32, 1.0),
    "head 3 counts 0.9 times": without(48, 64, -0.1),
    "the bias is missing": without(64, 65),
    "every head counts 1.05 times": without(0, 64, 0.05),
    "inputs 8 to 12 of head 1 are left out": without(24, 29),
    "inputs 11 to 13 of each of 4 parts (head 0, …) are left out": without_columns(11, 14),
    "input columns 16-47 of 65 (head 1, head 2) are left out": without(16, 48),
    "input columns 16-63 of 65 (head 1 to head 3) are left out": without(16, 64),
    "each input column counts otherwise, none of input columns 0, 2, ... 62 of 65, others 0.5": by_column(),
    "the next row": of_the_next_row(),
    "the next row (head 2)": of_the_next_row(np.s_[32:48]),
    "the weight of input columns 4-13 of 16 (head 1)": by_other_weight(),
    "the weight in fp8 (e5m2)": X @ W.astype(ml_dtypes.float8_e5m2).astype(np.float64).T,
    "the weight in int8 with one scale": X @ (np.round(W * 127 / np.abs(W).max()) * np.abs(W).max() / 127).T,
    "head 0 takes what head 3 should, head 3 takes what head 0 should": X[:, EXCHANGED] @ W.T,
    "each input meets the weight of the column 1 before": in_order(np.roll(np.arange(16), -1)),
    "inputs meet the weight in reverse": in_order(np.arange(16)[::-1]),
    "the weight of layer 3": by_the_weight_of_layer_3(bias=True),
    "the weight of layer 3, but for the bias": by_the_weight_of_layer_3(bias=False),
    "the numbers of 2 columns behind, but for the bias": X[:, :64] @ np.roll(W, -2, axis=0)[:, :64].T + W[:, 64],
    "head 3 takes what head 1 should": X[:, [*range(48), *range(16, 32), 64]] @ W.T,
    "head 3 meets the weight of head 1": X @ W[:, [*range(48), *range(16, 32), 64]].T,
    "what enters in fp8 (e5m2) (head 0": in_fp8_but_for_the_last_head(),
    "input columns 3-9 of 16 (head 2): other values, before": entered_otherwise(np.s_[35:42]),
    "head 1: its values, before they are multiplied": entered_otherwise(),
}


@pytest.mark.parametrize("says", PRODUCTS)
def test_the_part_of_a_product_is_said(says):
    assert said(in_products(wrong(WHOLE, PRODUCTS[says]), PRODUCT)).startswith(says)


SHARE = np.where(random(ROWS, 4, seed=4) > 0, 0.1 + random(ROWS, 4, seed=5) ** 2, 0.0)


EXPERTS = (*((f"the down weight of expert {e}", 16 * e, 16 * e + 16) for e in range(4)),
           *((f"the down bias of expert {e}", 64 + e, 65 + e) for e in range(4)))  # fmt: skip


INNER, DOWN = random(ROWS, 4, 16, seed=6), random(WIDTH, 68, seed=7)


def experts_give(before=lambda x: x, behind=lambda x: x):
    """The sum of what four experts give, rounded in front of their shares or behind each."""
    total = np.zeros((ROWS, WIDTH))
    for e in range(4):
        gives = INNER[:, e] @ DOWN[:, 16 * e : 16 * e + 16].T + DOWN[:, 64 + e]
        total = behind(total + before(gives) * SHARE[:, e, None])
    return total


@pytest.mark.parametrize(
    ("device", "says"),
    [
        (experts_give(before=bfloat16), "what each expert gives, before its share, in bfloat16"),
        (experts_give(behind=bfloat16), "the sum in bfloat16 behind each expert"),
        (sum(bfloat16(X[:, 16 * h : 16 * h + 16] @ W[:, 16 * h : 16 * h + 16].T) for h in range(4)) + W[:, 64],
         "what each head gives in bfloat16"),
    ],
)  # fmt: skip
def test_what_parts_give_in_fewer_bits_is_told_of_a_float32_device(device, says):
    x = np.concatenate([(INNER * SHARE[..., None]).reshape(ROWS, 64), SHARE], axis=1)
    x, weight, parts = (X, W, PRODUCT.parts) if "head" in says else (x, DOWN, EXPERTS)
    rows = replace(rows_of(x @ weight.T, device), device=device)
    of = WrongRows.of(rows, "float32")
    assert says in said(in_roundings(of, x[of.numbers], weight[of.columns], parts, of.passes, x.shape[1] - 64))


def test_heads_that_are_right_but_for_a_factor_in_each_row_are_said_together():
    heads = [(f"head {one}", X[:, 16 * one : 16 * one + 16] @ W[:, 16 * one : 16 * one + 16].T) for one in range(4)]
    factors = np.linspace(0.5, 0.9, ROWS)[:, None]
    device = WHOLE + sum((factors - 1) * part for _, part in heads[1:3])
    told = str(in_sums(wrong(WHOLE, device), heads))
    assert told.startswith("head 1, head 2: the keys' weights add up to other sums, 0.52 to 0.8")
    other = in_sums(wrong(WHOLE, WHOLE + random(*WHOLE.shape, seed=8)), heads)
    assert other is None or not other.whole


def test_no_change_is_made_once_the_time_is_up():
    """There may be hundreds of what could have entered: the limit is asked before each."""
    made = []

    class Many(Toy):
        def others(self):
            for number in range(100):
                made.append(number)
                yield "anything", X.__getitem__

    def check():
        if len(made) == 3:
            raise TimeIsUp

    with pytest.raises(TimeIsUp):
        said(in_products(wrong(WHOLE, WHOLE + random(*WHOLE.shape, seed=4)), Many(X, W), check))
    assert made == [0, 1, 2]


def test_rows_that_are_turned_by_positions_of_their_own_are_said():
    class Turned(Toy):
        def others(self):
            for step in (1, 2):
                yield f"turned {step} positions on", np.roll(GOLDEN, step, axis=1).__getitem__

    golden = Turned(GOLDEN, None, parts=(), keys=None)
    device = np.where(np.arange(ROWS)[:, None] % 3 > 0, np.roll(GOLDEN, 1, axis=1), np.roll(GOLDEN, 2, axis=1))
    found = said(in_products(wrong(GOLDEN, device), golden))
    assert found.startswith("row by row turned 1 positions on (40 rows), turned 2 positions on (20 rows)")


def test_no_change_is_made_behind_one_that_is_sure():
    made = []

    class Many(Toy):
        def others(self):
            for says in ("nothing", "the next row", "anything"):
                made.append(says)
                yield says, (np.roll(self.x, -1, axis=0) if says == "the next row" else self.x).__getitem__

    assert said(in_products(wrong(WHOLE, of_the_next_row()), Many(X, W))).startswith("the next row")
    assert made == ["nothing", "the next row"]


def test_more_rows_than_inputs_tell_any_weight_from_any_other_error():
    x = random(200, 65, seed=12)
    error = x @ random(65, WIDTH, seed=13)
    product, golden = Toy(x, W), x @ W.T
    assert said(in_products(wrong(golden, golden + error), product)).startswith("another weight, or other columns")
    assert said(in_products(wrong(golden, golden + np.tanh(error)), product)) == ""


def test_a_product_of_another_size_is_told_from_its_bias():
    product = Toy(X, W, parts=(("the bias", 64, 65),))
    assert said(in_products(wrong(WHOLE, without(0, 64, 0.05)), product)).startswith(
        "the product but for its bias counts"
    )


def test_tiles_of_one_part_that_take_each_others_input_are_said():
    product, order = Toy(X, W, parts=(("the bias", 64, 65),)), [*range(16, 32), *range(16), *range(32, 65)]
    says = said(in_products(wrong(WHOLE, X[:, order] @ W.T), product))
    assert says.startswith("inputs 0 to 15 take what inputs 16 to 31 should, inputs 16 to 31 take")


def test_blocks_with_scales_of_their_own_are_said():
    x = random(200, 64, seed=14)
    weight, scale = random(WIDTH, 64, seed=15), 2.0 ** np.random.default_rng(16).integers(-2, 3, (WIDTH, 2))
    product = Toy(x, weight, parts=())
    says = said(in_products(wrong(x @ weight.T, x @ (weight * scale.repeat(32, axis=1)).T), product))
    assert says.startswith("each block of 32 inputs has a factor of its own, powers of two: scales")


@pytest.mark.parametrize(("blocks", "says"), [(1, ""), (2, " for each block of 32 inputs")])
def test_weights_without_their_zero_points_are_told(blocks, says):
    x, weight, points = random(90, 64, seed=14), random(WIDTH, 64, seed=15), random(WIDTH, blocks, seed=16)
    off = wrong(x @ weight.T, x @ (weight + 0.2 * points.repeat(64 // blocks, axis=1)).T)
    told = said(in_products(off, Toy(x, weight, parts=())))
    assert told.startswith(f"each output's weight is off by a number of its own{says}: zero points")


def test_weights_that_are_cut_are_told_with_the_size():
    x, weight = random(90, 64, seed=14), random(WIDTH, 64, seed=15)
    cut = np.clip(weight, -2 * weight.std(), 2 * weight.std())
    assert "(2 standard deviations)" in said(in_products(wrong(x @ weight.T, x @ cut.T), Toy(x, weight, parts=())))


def test_a_change_in_some_tiles_of_inputs_is_told_with_these():
    x, weight = random(ROWS, 96, seed=47), random(WIDTH, 96, seed=48)
    taken = np.where((np.arange(96) < 32) | (np.arange(96) >= 64), x, np.roll(x, -1, axis=0))
    told = said(in_products(wrong(x @ weight.T, taken @ weight.T), Toy(x, weight, parts=())))
    assert told.startswith("the next row (inputs 32 to 63)")


def test_inputs_that_are_left_out_are_told_beside_a_bias():
    x = np.concatenate([random(ROWS, 64, seed=45), np.ones((ROWS, 1))], axis=1)
    weight, lost = random(WIDTH, 65, seed=46), x.copy()
    lost[:, 32:64] = 0
    told = said(in_products(wrong(x @ weight.T, lost @ weight.T), Toy(x, weight, parts=(("the bias", 64, 65),))))
    assert told.startswith("inputs 32 to 63 are left out")


def test_biases_of_the_parts_behind_are_told():
    x = np.concatenate([(INNER * SHARE[..., None]).reshape(ROWS, 64), SHARE], axis=1)
    order = [*range(64), *np.roll(range(64, 68), -1)]
    off = wrong(x @ DOWN.T, x @ DOWN[:, order].T)
    told = said(in_weights(off, x[off.numbers], DOWN, EXPERTS, iter(())))
    assert told.startswith("the bias of each part is that of the one 1 behind (the down bias of expert 0 and so on)")


def test_inputs_that_are_cut_are_told_with_the_size():
    x, weight = 3 * random(ROWS, 64, seed=41), random(WIDTH, 64, seed=42)
    told = said(in_products(wrong(x @ weight.T, np.clip(x, -4.5, 4.5) @ weight.T), Toy(x, weight, parts=())))
    assert told.startswith("what enters is cut to a size of 4.5")


def test_rows_whose_inputs_are_cut_at_sizes_of_their_own_are_told():
    x, weight = 3 * random(ROWS, 64, seed=41), random(WIDTH, 64, seed=42)
    sizes = np.repeat(np.linspace(3.0, 5.0, ROWS // 10), 10)[:ROWS, None]
    told = said(in_products(wrong(x @ weight.T, np.clip(x, -sizes, sizes) @ weight.T), Toy(x, weight, parts=())))
    assert told.startswith("what enters is cut, each row at a size of its own (2.997 to 5.006)")


BLOCKS_OF_32 = (lambda w: np.abs(w).reshape(len(w), -1, 32).max(axis=2).repeat(32, axis=1), "their block of 32 inputs")


@pytest.mark.parametrize(("largest", "of"), [BLOCKS_OF_32, (lambda w: np.abs(w).max(), "it")])
def test_small_numbers_of_a_weight_that_count_as_zero_are_told(largest, of):
    x, weight = random(ROWS, 64, seed=51), random(WIDTH, 64, seed=52)
    flushed = np.where(np.abs(weight) < 0.25 * largest(weight), 0, weight)
    told = said(in_products(wrong(x @ weight.T, x @ flushed.T), Toy(x, weight, parts=())))
    assert re.match(f"numbers of the weight below 0.2[45][0-9]* times the largest of {of} are zero", told), told


def test_small_numbers_that_enter_and_count_as_zero_are_told():
    x, weight = random(ROWS, 64, seed=51), random(WIDTH, 64, seed=52)
    flushed = np.where(np.abs(x) < 0.25 * np.abs(x).max(axis=1, keepdims=True), 0, x)
    told = said(in_products(wrong(x @ weight.T, flushed @ weight.T), Toy(x, weight, parts=())))
    assert re.match("numbers that enter below 0.2[45][0-9]* times the largest of their row are zero", told), told


@pytest.mark.parametrize(
    ("lies", "read"), [("outputs", lambda w: w.reshape(64, -1).T), ("inputs", lambda w: w.T.reshape(-1, 64))]
)
def test_a_weight_that_is_read_with_its_axes_in_the_other_order_is_told(lies, read):
    x, weight = random(ROWS, 64, seed=53), random(WIDTH, 64, seed=54)
    told = said(in_products(wrong(x @ weight.T, x @ read(weight).T), Toy(x, weight, parts=())))
    assert told.startswith(f"the weight lies in memory by {lies} and is read in the other order"), told


def test_codes_of_a_weight_that_are_read_as_others_are_told():
    x, weight = random(ROWS, 64, seed=43), random(WIDTH, 64, seed=44)
    low = np.where(nearest_codes(weight) == 0.5, 1.5 * weight, weight)
    told = said(in_products(wrong(x @ weight.T, x @ low.T), Toy(x, weight, parts=())))
    assert told.startswith("numbers of the weight that MXFP4 has read otherwise: 0.5 as 0.75")


def test_numbers_near_an_edge_between_two_steps_may_have_gone_to_the_other_side():
    x, weight = random(60, 48, seed=14), random(128, 48, seed=15)
    noisy = x * (1 + 2e-3 * random(*x.shape, seed=16))
    low = noisy.astype(ml_dtypes.float8_e4m3fn).astype(float)
    told = said(in_products(wrong(x @ weight.T, low @ weight.T), Toy(x, weight, parts=())))
    assert told.startswith("what enters in fp8 (e4m3), but for ") and "numbers at an edge between two steps" in told


def test_what_experts_give_in_eight_bits_before_their_shares_is_told():
    noisy = INNER * (1 + 2e-3 * random(*INNER.shape, seed=55))
    low = noisy.astype(ml_dtypes.float8_e4m3fn).astype(float)
    right, device = (
        np.concatenate([(inner * SHARE[..., None]).reshape(ROWS, 64), SHARE], axis=1) for inner in (INNER, low)
    )
    told = said(in_products(wrong(right @ DOWN.T, device @ DOWN.T), Toy(right, DOWN, parts=EXPERTS)))
    assert told.startswith("what enters in fp8 (e4m3), before its share, but for "), told


def test_a_part_that_is_faintly_off_is_found_over_all_rows():
    floor = np.linalg.norm(WHOLE) / np.sqrt(WHOLE.size) * 2e-3
    noise = floor * random(*WHOLE.shape, seed=11)
    of = WrongRows.of(rows_of(WHOLE, without(32, 48, 4e-3) + noise), "bfloat16", whole=True)
    told = in_faint_parts(of, PRODUCT)
    assert told.says.startswith("head 2 counts 1.00") and told.whole
    assert in_faint_parts(WrongRows.of(rows_of(WHOLE, WHOLE + noise), "bfloat16", whole=True), PRODUCT) is None


def test_a_change_that_is_faint_is_told_by_its_own_size():
    floor = np.linalg.norm(WHOLE) / np.sqrt(WHOLE.size) * 2e-3
    noise = floor * random(*WHOLE.shape, seed=17)
    faint = WHOLE * 1e-3
    changed = {
        "what happened": WHOLE + faint,
        "ten times that": WHOLE + 10 * faint,
        "another": WHOLE + floor * random(*WHOLE.shape, seed=19),
    }
    with_changes = SimpleNamespace(
        x=WHOLE, weight=None, others=lambda: ((says, rows.__getitem__) for says, rows in changed.items())
    )
    of = WrongRows.of(rows_of(WHOLE, WHOLE + faint + noise), "bfloat16", whole=True)
    told = in_faint_changes(of, with_changes)
    assert told.says == "what happened" and told.whole
    own = SimpleNamespace(
        x=WHOLE, weight=None, others=lambda: [("what goes in in bfloat16", (WHOLE + faint).__getitem__)]
    )
    assert in_faint_changes(of, own) is None  # a device in bfloat16 rounds there anyway
    assert in_faint_changes(replace(of, precision="float32"), own).says == "what goes in in bfloat16"
    clean = WrongRows.of(rows_of(WHOLE, WHOLE + floor * random(*WHOLE.shape, seed=18)), "bfloat16", whole=True)
    assert in_faint_changes(clean, with_changes) is None


def test_tf32_is_ten_bits_behind_the_point():
    mantissa, exponent = np.frexp(X.astype(np.float32).astype(np.float64))
    due = np.ldexp(np.sign(mantissa) * np.floor(np.abs(mantissa) * 2**11 + 0.5), exponent - 11)
    assert np.array_equal(dict(_formats(X))["TF32"](X), due)


@pytest.mark.parametrize(
    "says", ["inputs of 3 runs in turn meet the weight", "inputs in turn for 3 runs meet the weight"]
)
def test_inputs_of_runs_that_are_read_in_turn_are_told(says):
    orders = dict(_dealt(48))
    x, weight = random(ROWS, 48, seed=31), random(WIDTH, 48, seed=32)
    parts = [(f"tap {one}", 16 * one, 16 * one + 16) for one in range(3)]
    golden, device = x @ weight.T, x[:, orders[says]] @ weight.T
    told = next(one.says for one in in_weights(wrong(golden, device), x, weight, parts, iter(())) if one and one.whole)
    assert told == says


def test_roundings_are_not_tried_once_the_time_is_up():
    """Of a large weight each takes seconds."""
    asked = []

    def check():
        asked.append(1)
        if len(asked) > 3:
            raise TimeIsUp

    with pytest.raises(TimeIsUp):
        list(in_products(wrong(WHOLE, by_other_weight()), PRODUCT, check))
    assert len(asked) == 4
