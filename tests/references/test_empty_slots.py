"""Attention over so many empty slots: the same as over slots that are there."""

from __future__ import annotations

import pytest
import torch

from parity.references.hypotheses.masks import FEW, over_empty_slots


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[B, S, N, D] of as many heads of queries as of keys; each head has a sink of score 1."""
    scores = (q @ k.transpose(2, 3)).masked_fill(~mask, float("-inf"))
    sinks = torch.ones(*scores.shape[:3], 1, dtype=scores.dtype)
    return (torch.cat((scores, sinks), -1).softmax(-1)[..., :-1] @ v).transpose(1, 2)


@pytest.mark.parametrize("many", [0, 1, FEW, FEW + 1, 5000])
def test_slots_that_are_not_there_count_as_those_that_are(many: int) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, rows, 8, dtype=torch.float64) for rows in (3, 5, 5))
    mask = torch.ones(3, 5, dtype=torch.bool).tril(2)
    longer = [torch.cat((x, torch.zeros(1, 2, many, 8, dtype=torch.float64)), 2) for x in (k, v)]
    seen = torch.cat((mask, torch.ones(3, many, dtype=torch.bool)), -1)

    there = attend(q, *longer, seen)

    assert torch.allclose(over_empty_slots(attend, q, k, v, mask, many), there, rtol=1e-12, atol=0)
    assert many == 0 or not torch.allclose(there, attend(q, k, v, mask), rtol=1e-2)


@pytest.mark.parametrize(("score", "kept"), [(80.0, 1.0), (-80.0, 0.0)])
def test_where_one_side_has_all_the_weight_nothing_is_nan(score: float, kept: float) -> None:
    q = torch.ones(1, 1, 1, 4)
    k, v, mask = score / 4 * torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1, 4), torch.ones(1, 1, dtype=torch.bool)

    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return ((q @ k.transpose(2, 3)).masked_fill(~mask, float("-inf")).softmax(-1) @ v).transpose(1, 2)

    assert over_empty_slots(plain, q, k, v, mask, 131072).flatten().tolist() == [kept] * 4
