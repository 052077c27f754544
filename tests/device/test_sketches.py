"""The xla engine makes sketches where its tensors are; the recorder hands these to a tap that takes them."""

from __future__ import annotations

import numpy as np
import pytest

from parity.device.recorder import Recorder
from parity.golden.keeping import Keeping
from parity.golden.smaller import Smaller
from parity.sketch import joined, projection, sketch
from parity.stages import declared
from parity.trace import ForcingTrace, Trace

NAMES = declared(2, 1)
KEEPING = Keeping(Smaller(8, 3).kept(), "", NAMES)
STAGE = "target.layers.0.q"
ROWS = np.random.default_rng(0).standard_normal((5, 4, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def engine():
    pytest.importorskip("jax")
    from parity.device.engines import xla_engine

    return xla_engine.engine()


def test_the_engine_sketches_as_the_host_does(engine):
    made = engine.sketch(engine.array(ROWS[None]), projection(3, 8, 64))
    np.testing.assert_allclose(joined(*made), sketch(ROWS, 8, 3), rtol=0, atol=1e-5)


def test_logical_rows_alone_are_sketched_and_the_value_stays(engine):
    trace, value = Trace(NAMES, keeping=KEEPING), engine.array(ROWS[None])
    trace.begin(0)
    assert Recorder(trace, engine).bind("target", 3, 0)("q", value) is value
    np.testing.assert_allclose(trace.sketches[0, STAGE].numbers, sketch(ROWS[:3], 8, 3), rtol=0, atol=1e-5)
    assert (trace.sketches[0, STAGE].shape, trace.tensors) == ((3, 4, 16), {})


def test_a_forced_stage_continues_with_the_goldens_rows(engine):
    trace = ForcingTrace(NAMES, lambda round_, stage: np.ones((3, 4, 16), np.float32), {STAGE}, keeping=KEEPING)
    trace.begin(0)
    taken = engine.host(Recorder(trace, engine).bind("target", 3, 0)("q", engine.array(ROWS[None])))
    assert (taken[0, :3] == 1).all()
    np.testing.assert_array_equal(taken[0, 3:], ROWS[3:])
