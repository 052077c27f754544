"""Which distributions may be behind logits that noise moves: by edges of top-p, min-p and top-k."""

from __future__ import annotations

import numpy as np
import pytest

from parity.compare.sampling.possible import _variants
from parity.seam import Sampling


def asked(noise: float = 0.01, **settings) -> list[tuple[int, float]]:
    """(top-k, slack) of each distribution that is asked for."""
    found: list[tuple[int, float]] = []

    def of(some: Sampling, slack: float) -> np.ndarray:
        found.append((some.top_k, round(slack, 4)))
        return np.zeros(1)

    return list(_variants(of, Sampling(temperature=1.0, **settings), noise)) and found


def test_without_an_edge_there_is_one():
    assert asked() == [(0, 0.0)]


@pytest.mark.parametrize("edge", [{"top_p": 0.9}, {"min_p": 0.05}])
def test_an_edge_of_a_share_moves_both_ways_by_what_noise_does(edge):
    assert asked(**edge) == [(0, 0.0), (0, 0.0101), (0, -0.0101)]


def test_a_number_of_tokens_is_one_more_or_less():
    assert asked(top_k=5) == [(5, 0.0), (6, 0.0), (4, 0.0)] and asked(top_k=1) == [(1, 0.0)]
