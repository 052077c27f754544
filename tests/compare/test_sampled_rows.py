"""A sampled round by hand: which rows were decided, and the distribution behind temperature, top-k, top-p and min-p."""

from __future__ import annotations

import numpy as np
import pytest

from parity.compare.sampling.oracle import processed
from parity.compare.sampling.round import SampledRound
from parity.seam import Sampling

NUMBERS = np.full((4, 3), 0.6, np.float32)


@pytest.mark.parametrize(
    ("drafts", "tokens", "kept", "decided"),
    [
        ((1, 2), (1, 2, 3), 2, 3), ((1, 2), (1, 5, -1), 1, 2), ((1, 2), (5, -1, -1), 0, 1), ((1, 2), (5, 2, 3), 0, 3),
        ((1, 2), (1, 5, 6), 1, 3), ((1, 2), (5, 2, -1), 0, 3), ((), (4,), 0, 1), ((1,), (1, -1), 1, 2),
        ((1, 2), (1, 2, -1), 2, 3), ((1, 2, 3), (5, -1, -1, 7), 0, 4), ((1, 2, 3), (1, 5, -1, -1), 1, 2),
    ],
)  # fmt: skip
def test_rows_behind_the_first_rejected_draft_are_decided_unless_all_are_empty(drafts, tokens, kept, decided):
    seen = SampledRound(0, 1, np.array(drafts), np.array(tokens), None, np.zeros((len(tokens), 8)), NUMBERS)
    assert (seen.kept, seen.decided) == (kept, decided)


def test_the_distribution_behind_top_k_top_p_and_min_p():
    shares = np.array([[0.5, 0.25, 0.15, 0.1], [0.1, 0.2, 0.3, 0.4]])

    def of(**asked) -> list[list[float]]:
        return np.round(processed(np.log(shares), Sampling(temperature=1.0, **asked)), 6).tolist()

    assert of(top_k=2) == [[0.666667, 0.333333, 0, 0], [0, 0, 0.428571, 0.571429]]
    assert of(top_k=4) == of(top_k=9) == of(top_k=0) == of() == shares.tolist()
    assert of(top_p=0.6) == [[0.666667, 0.333333, 0, 0], [0, 0, 0.428571, 0.571429]]
    assert of(top_p=0.45) == [[1, 0, 0, 0], [0, 0, 0.428571, 0.571429]]
    assert of(min_p=0.45) == [[0.666667, 0.333333, 0, 0], [0, 0.222222, 0.333333, 0.444444]]
    assert processed(np.array([1.0, 3.0, 3.0]), Sampling(temperature=0.0)).tolist() == [0, 1, 0]
    hot = processed(np.log(shares[0]), Sampling(temperature=2.0))
    assert hot == pytest.approx(np.sqrt(shares[0]) / np.sqrt(shares[0]).sum())
