"""Other roundings: the same maths to float32, other bits in bfloat16, and one floor out of several."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from parity.references.capture import ignore
from parity.references.hf_target import HFTarget
from parity.references.roundings import Roundings, linear_by_chance, pooled

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


def test_in_bfloat16_every_pass_draws_its_errors_anew(tiny):
    """Another order of sums alone tips one element of twenty thousand, and every pass has the first one's errors."""
    (true,) = logits(tiny, torch.float32, (0,))
    first, other, third = logits(tiny, torch.bfloat16, (0, 1, 2))
    assert all((one != two).float().mean() > 0.5 for one, two in ((first, other), (first, third), (other, third)))
    sizes = [float((one - true).square().mean().sqrt()) for one in (first, other, third)]
    assert max(sizes) < 2 * min(sizes)


def test_a_linear_layer_rounds_up_as_often_as_its_sums_are_near_the_upper_neighbour():
    x = torch.full((4000, 1), 1 + 2**-7, dtype=torch.bfloat16)
    weight = torch.tensor([[1.0], [1 + 2**-7]], dtype=torch.bfloat16)  # the second product ends in 2^-14
    drawn = linear_by_chance(x, weight, None, torch.Generator().manual_seed(1)).float()
    assert torch.equal(drawn[:, 0], x[:, 0].float())
    low, up = 1 + 2 * 2**-7, 1 + 3 * 2**-7
    assert set(drawn[:, 1].tolist()) == {low, up}
    assert (drawn[:, 1] == up).float().mean().item() == pytest.approx(2**-7, abs=0.006)


def test_one_pass_is_the_floor_itself():
    only = {PLACE: np.ones((2, 3), ml_dtypes.bfloat16)}
    assert pooled({PLACE: np.ones((2, 3), np.float32)}, [only])[PLACE] is only[PLACE]


def test_a_stage_in_which_all_passes_agree_stays_the_first_pass():
    passes = [{PLACE: np.full((2, 3), 1.5, ml_dtypes.bfloat16)} for _ in range(2)]
    assert pooled({PLACE: np.ones((2, 3), np.float32)}, passes)[PLACE] is passes[0][PLACE]


def test_several_passes_pool_to_their_rms_error_with_the_first_ones_signs_and_size():
    """The second pass, scaled to the first one's size over all rounds, has more of its error in the first column."""
    later = 1, PLACE[1]
    truth = {place: np.ones((1, 2), np.float32) for place in (PLACE, later)}
    passes = [
        {PLACE: np.asarray([[1 + x, 1 + y]], ml_dtypes.bfloat16), later: np.asarray([[z, 1]], ml_dtypes.bfloat16)}
        for x, y, z in ((-1, 0.5, 1), (7, -0.5, 0.5))
    ]
    scale = (1 + 0.25) / (49 + 0.25 + 0.25)
    due = np.sqrt([(1 + 49 * scale) / 2, (0.25 + 0.25 * scale) / 2, 0.25 * scale / 2])
    made = pooled(truth, passes)
    assert made[PLACE] == pytest.approx(np.array([[1 - due[0], 1 + due[1]]]), abs=1e-6)
    assert np.abs(made[later] - 1) == pytest.approx(np.array([[due[2], 0]]), abs=1e-6)
    assert sum(np.square(made[place] - 1).sum() for place in truth) == pytest.approx(1.25)


def test_integers_are_the_first_passes():
    truth = {(0, "target.tokens"): np.array([1, 2])}
    passes = [{(0, "target.tokens"): np.array(ids)} for ids in ([1, 3], [4, 4])]
    assert pooled(truth, passes)[0, "target.tokens"].tolist() == [1, 3]
