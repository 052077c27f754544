"""A port makes its sketches by its own library; a tap that takes none gets the tensor."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from parity.adapters import hand_sketched, to_numpy
from parity.errors import UsageError
from parity.golden.keeping import Keeping
from parity.golden.smaller import Smaller
from parity.sketch import sketch
from parity.stages import declared
from parity.trace import ForcingTrace, Trace

NAMES = declared(2, 1)
KEEPING = Keeping(Smaller(8, 3).kept(), "", NAMES)
STAGE, NARROW = "target.layers.0.q", "target.layers.0.router_logits"
ROWS = np.random.default_rng(0).standard_normal((5, 4, 16)).astype(ml_dtypes.bfloat16)


def of_torch(rows):
    torch = pytest.importorskip("torch")
    return torch.tensor(rows.astype(np.float32)).bfloat16()


def of_jax(rows):
    return pytest.importorskip("jax.numpy").asarray(rows)


@pytest.mark.parametrize("made_by", [np.asarray, of_torch, of_jax], ids=["numpy", "torch", "jax"])
def test_a_sketch_is_that_of_the_host_and_the_tensor_stays(made_by):
    trace, value = Trace(NAMES, keeping=KEEPING), made_by(ROWS)
    trace.begin(0)
    assert hand_sketched(trace, STAGE, value) is value
    seen = trace.sketches[0, STAGE]
    assert (seen.shape, seen.dtype, seen.numbers.dtype) == ((5, 4, 16), "bfloat16", np.float32)
    np.testing.assert_allclose(seen.numbers, sketch(ROWS, 8, 3), rtol=0, atol=1e-5)
    assert not trace.tensors


def test_what_is_kept_whole_comes_whole():
    trace = Trace(NAMES, keeping=KEEPING)
    trace.begin(0)
    hand_sketched(trace, NARROW, ROWS.reshape(5, 64)[:, :8])
    hand_sketched(lambda stage, value: value, STAGE, ROWS)
    assert list(trace.tensors) == [(0, NARROW)]


def test_caches_are_handed_over_whole():
    trace = Trace(NAMES, keeping=KEEPING)
    trace.begin(0)
    assert trace.projection("kv.target.0.k", 64) is None and trace.projection(STAGE, 64) is not None


def test_a_forced_stage_continues_with_the_goldens():
    golden = np.ones((5, 4, 16), np.float32)
    trace = ForcingTrace(NAMES, lambda round_, stage: golden, {STAGE}, keeping=KEEPING)
    trace.begin(0)
    taken = hand_sketched(trace, STAGE, ROWS)
    assert taken.dtype == ROWS.dtype
    assert (to_numpy(taken) == 1).all()


def test_a_sketch_of_another_size_or_twice_is_refused():
    trace = Trace(NAMES, keeping=KEEPING)
    trace.begin(0)
    with pytest.raises(UsageError, match=r"came as a sketch of shape \(5, 4\)"):
        trace.sketch(STAGE, np.zeros((5, 4)), np.zeros(5), (5, 4, 16), "float32")
    hand_sketched(trace, STAGE, ROWS)
    with pytest.raises(UsageError, match="came twice"):
        hand_sketched(trace, STAGE, ROWS)
