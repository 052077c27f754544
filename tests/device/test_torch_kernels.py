"""The torch device's kernels against loops in float64, and its two ways of a grouped product."""

from __future__ import annotations

import math

import numpy as np
import pytest

from parity.device.torch import attention, experts, multiply, rotate

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("sinks", [None, [0.5, -3.0, 2.0, 1.0]])
@pytest.mark.parametrize("window", [None, 3])
def test_attention_is_the_softmax_over_what_is_seen_and_the_sink(window, sinks):
    torch.manual_seed(0)
    q, keys, values = (torch.randn(1, rows, heads, 8) for rows, heads in ((2, 4), (7, 2), (7, 2)))
    positions = torch.tensor([4, 6])
    sink = None if sinks is None else torch.tensor(sinks)
    mixed = attention.attend(q, keys, values, attention.seen(positions, 7, window), sink)
    for row, head in np.ndindex(2, 4):
        at = range(max(0, positions[row] - (window or 99) + 1), positions[row] + 1)
        scores = np.exp([float(q[0, row, head].double() @ keys[0, key, head // 2].double()) * 8**-0.5 for key in at])
        below = scores.sum() + (0 if sinks is None else math.exp(sinks[head]))
        expected = sum(weight * values[0, key, head // 2].double() for weight, key in zip(scores, at, strict=True))
        assert torch.allclose(mixed[0, row, 8 * head : 8 * head + 8].double(), expected / below, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [24, 9])
def test_the_fused_product_of_groups_is_one_product_a_group(width, dtype):
    """PyTorch's kernel takes no rows of 18 bytes."""
    torch.manual_seed(0)
    rows, matrices = torch.randn(6, 16).to(dtype), torch.randn(5, 16, width).to(dtype)
    assert experts.has_kernel(rows, matrices) == (width == 24)
    ends = torch.tensor([0, 2, 2, 5, 6])
    parts = [rows[:2] @ matrices[1], rows[2:5] @ matrices[3], rows[5:] @ matrices[4]]
    for product in (experts.grouped(rows, matrices, ends), experts.one_by_one(rows, matrices, ends)):
        assert torch.allclose(product.float(), torch.cat(parts).float(), rtol=2**-8, atol=1e-5)


def test_experts_that_tie_are_taken_in_the_order_of_their_ids():
    assert experts.top_k(torch.tensor([[[1.0, 3.0, 3.0, 3.0]]]), 2).tolist() == [[[1, 2]]]


@pytest.mark.parametrize("side", ["target", "drafter"])
def test_rotation_is_that_of_the_other_device(side, tiny):
    from parity import device

    x = np.random.default_rng(0).standard_normal((9, 2, 32)).astype(np.float32)
    positions = np.array([0, 1, 2, 31, 63, 64, 200, 400, 511])
    ours, theirs = (made(tiny / side, side, x, positions) for made in (rotate, device.rotate))
    assert np.allclose(ours, theirs, atol=1e-5) and not np.allclose(ours[1:], x[1:], atol=1e-2)


def test_a_product_is_rounded_to_what_was_asked_for():
    import ml_dtypes

    left, right = (
        np.random.default_rng(0).standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((3, 5), (5, 4))
    )
    exact = left.astype(np.float64) @ right.astype(np.float64)
    assert np.allclose(multiply(left, right, "float32"), exact, atol=1e-6)
    assert np.array_equal(multiply(left, right, "bfloat16"), exact.astype(ml_dtypes.bfloat16))
