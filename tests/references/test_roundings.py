"""Other roundings: the same maths to float32, other bits in bfloat16, and one floor out of several."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from parity.references.capture import ignore
from parity.references.hf_target import HFTarget
from parity.references.roundings import Roundings, pooled

IDS = torch.arange(50) * 7 % 1200
PLACE = (0, "target.embed")


def logits(tiny, dtype, numbers):
    """The target's logits under each of these roundings, one after the other."""
    target = HFTarget(tiny / "target", dtype)
    roundings, found = Roundings(target.model), []
    for number in numbers:
        roundings.choose(number)
        target.reset(ignore)
        found.append(target.forward(IDS).float())
    return found


def test_in_float32_every_rounding_is_the_same_maths(tiny):
    first, other = logits(tiny, torch.float32, (0, 1))
    torch.testing.assert_close(other, first, rtol=1e-4, atol=1e-4)


def test_in_bfloat16_they_differ_and_the_first_comes_back(tiny):
    first, other, again = logits(tiny, torch.bfloat16, (0, 1, 0))
    assert not torch.equal(first, other) and torch.equal(first, again)


def test_one_pass_is_the_floor_itself():
    only = {PLACE: np.ones((2, 3), ml_dtypes.bfloat16)}
    assert pooled({PLACE: np.ones((2, 3), np.float32)}, [only])[PLACE] is only[PLACE]


def test_a_stage_in_which_all_passes_agree_stays_the_first_pass():
    passes = [{PLACE: np.full((2, 3), 1.5, ml_dtypes.bfloat16)} for _ in range(2)]
    assert pooled({PLACE: np.ones((2, 3), np.float32)}, passes)[PLACE] is passes[0][PLACE]


def test_several_passes_pool_to_their_rms_error_with_the_first_ones_signs():
    truth = {PLACE: np.ones((1, 2), np.float32)}
    passes = [{PLACE: (truth[PLACE] + error).astype(ml_dtypes.bfloat16)} for error in ([[-1, 0.5]], [[7, -0.5]])]
    assert pooled(truth, passes)[PLACE] == pytest.approx(np.array([[1 - 5, 1.5]]))


def test_integers_are_the_first_passes():
    truth = {(0, "target.tokens"): np.array([1, 2])}
    passes = [{(0, "target.tokens"): np.array(ids)} for ids in ([1, 3], [4, 4])]
    assert pooled(truth, passes)[0, "target.tokens"].tolist() == [1, 3]
