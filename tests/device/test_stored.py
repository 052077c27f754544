"""Weights that stay in their files: the same bits, and no large matrix is ever widened whole."""

from __future__ import annotations

import numpy as np
import pytest

from parity import device
from parity.device import mxfp4, stored
from parity.device.engines.stored import Stored
from parity.errors import UsageError

IDS = range(100, 140)


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch):
    monkeypatch.setattr(stored, "LARGE", 0)


@pytest.mark.parametrize(("target", "precision"), [("target-mxfp4", "bfloat16"), ("target", "float32")])
def test_it_emits_what_weights_in_memory_do_and_widens_no_matrix_whole(target, precision, tiny, monkeypatch):
    pair = dict(target=tiny / target, drafter=tiny / "drafter", k=4, precision=precision)
    widened, part = [], Stored.part

    def seen(self, index):
        widened.append((self.shape, np.size(taken := part(self, index))))
        return taken

    monkeypatch.setattr(Stored, "part", seen)
    monkeypatch.setattr("parity.device.engines.stored.PART", 2**14)
    assert device.load(**pair, weights="files").generate(IDS, 8) == device.load(**pair).generate(IDS, 8)
    matrices = {shape: most for shape, most in widened if np.prod(shape) > 2**16}
    assert matrices and all(most <= np.prod(shape) // 4 for shape, most in matrices.items())


def test_a_packed_expert_is_what_all_of_them_hold_of_it():
    random = np.random.default_rng(0)
    blocks, scales = random.integers(0, 256, (5, 6, 2, 16), np.uint8), random.integers(120, 130, (5, 6, 2), np.uint8)
    packed, whole = mxfp4.Packed(blocks, scales), mxfp4.decode(blocks, scales)
    assert packed.shape == whole.shape
    assert np.array_equal(packed[3], whole[3]) and np.array_equal(packed[...], whole)
    assert np.array_equal(packed[..., 1::2][np.array([4, 0])], whole[[4, 0], :, 1::2])


@pytest.mark.parametrize("options", [dict(engine="xla"), dict(lanes=2), dict(tp=2), dict(weights="disk")])
def test_what_it_does_not_go_with_is_refused(options, tiny):
    with pytest.raises(UsageError, match=r"^weights"):
        device.load(tiny / "target", tiny / "drafter", 4, **dict(weights="files") | options)
