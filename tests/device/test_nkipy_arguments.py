"""Nested arguments as named arrays and back: what stands between a kernel and a tracer."""

from dataclasses import dataclass

import numpy as np
import pytest

from parity.device.engines.traced.arguments import join, split
from parity.device.kernels.step import Step


@dataclass(frozen=True)
class Config:
    heads: int


def array(*shape):
    return np.zeros(shape)


def arguments(window=5, span=64, scale=1):
    step = Step(array(1), array(2), array(3), span, {None: array(4), 5: array(5)})
    weights, config = [{"q": array(7)}], Config(4)
    return {"x": array(6), "step": step, "weights": weights, "config": config, "window": window, "s": scale}


def test_arrays_come_out_in_order_with_their_paths():
    _, leaves = split(arguments(), np.ndarray)
    assert [path for path, _ in leaves] == [
        "x", "step_slots", "step_cos", "step_sin", "step_seen_None", "step_seen_5", "weights_0_q",
    ]  # fmt: skip
    assert [one.shape for _, one in leaves] == [(6,), (1,), (2,), (3,), (4,), (5,), (7,)]


def test_what_was_taken_apart_is_put_together_again():
    given = arguments()
    skeleton, leaves = split(given, np.ndarray)
    again = join(skeleton, iter([path for path, _ in leaves]))
    assert again["step"] == Step("step_slots", "step_cos", "step_sin", 64, {None: "step_seen_None", 5: "step_seen_5"})
    assert (again["weights"], again["config"], again["window"]) == ([{"q": "weights_0_q"}], Config(4), 5)


@pytest.mark.parametrize("change", [dict(window=None), dict(span=128), dict(scale=1.0), dict(scale=True)])
def test_another_static_value_is_another_skeleton(change):
    plain, changed = (split(arguments(**some), np.ndarray)[0] for some in ({}, change))
    assert plain == split(arguments(), np.ndarray)[0]
    assert hash(plain) == hash(split(arguments(), np.ndarray)[0])
    assert changed != plain


def test_a_value_that_is_no_array_and_has_no_identity_is_refused():
    with pytest.raises(TypeError, match="unhashable"):
        split({"x": {1, 2}}, np.ndarray)
