"""Shares where the sink is a column beside the scores, by hand: what is cut off, and where the sink's share goes."""

from __future__ import annotations

import numpy as np
import torch

from parity.references.products.attention.operands import softmax
from parity.references.products.attention.sink_column import _as_well, _beside, _on_another, of_sink_columns

SEEN = torch.tensor([[0, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1]], dtype=torch.bool)
SCORES = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
SCORES = SCORES.masked_fill(~SEEN, float("-inf"))
SINKS = torch.tensor([0.3, -0.5], dtype=torch.float64).view(-1, 1, 1)


def test_the_column_beside_begins_at_the_first_key_that_the_pass_sees():
    right = softmax(SCORES, SINKS)
    sink = 1 - right.sum(-1)
    before, behind = _beside(SCORES, SINKS, first=True), _beside(SCORES, SINKS, first=False)
    np.testing.assert_allclose(before[..., 1], sink)
    np.testing.assert_allclose(before[..., 2:], right[..., 1:-1])
    np.testing.assert_allclose(behind[..., 1:-1], right[..., 2:])
    np.testing.assert_allclose(behind[..., -1], sink)
    assert (before[..., 0] == 0).all() and (behind[..., 0] == 0).all()


def test_a_key_gets_the_sinks_share_beside_its_own():
    right = softmax(SCORES, SINKS)
    for last, keys in ((False, [1, 1, 2]), (True, [2, 3, 4])):
        more = _as_well(SCORES, SINKS, last=last) - right
        for row, key in enumerate(keys):
            np.testing.assert_allclose(more[:, row, key], 1 - right[:, row].sum(-1))
            assert (more[:, row].abs() > 1e-12).sum() == 2


def test_a_share_acts_on_the_key_beside():
    right = softmax(SCORES, SINKS)
    before, behind = _on_another(SCORES, SINKS, step=-1), _on_another(SCORES, SINKS, step=1)
    np.testing.assert_allclose(before[..., :-1], right[..., 1:])
    np.testing.assert_allclose(behind[..., 1:], right[..., :-1])
    assert (before[..., -1] == 0).all() and (behind[..., 0] == 0).all()


def test_each_is_said_once():
    said = [says for says, _ in of_sink_columns()]
    assert len(said) == len(set(said)) == 6
