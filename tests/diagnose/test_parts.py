"""A head or an expert of a layer, or a weight of it, too large or missing: named with its size, in any view."""

from __future__ import annotations

import numpy as np
import pytest

from parity import device
from parity.api import diagnose_device
from tests.sample import first

WRONG = {
    "head": ("o", np.s_[32:64], 0.0, "part-head", "head 1 of layer 1 is missing"),
    "gate": ("gate", np.s_[2], 0.9, "part-expert-gate", "expert 2 of layer 1 is 0.9 times"),
    "value": ("v", np.s_[:, 64:96], 1.5, "part-v-weight", "head 2 of layer 1 is 1.5 times"),
}


@pytest.mark.parametrize(
    ("what", "view"), first([("value", "all"), ("gate", "layer-outputs"), ("head", "layer-outputs")])
)
def test_a_part_of_another_size_is_named_with_its_size(what, view, shallow_golden):
    *_, name, said = WRONG[what]
    shown = "" if view == "all" else f",show={view}"
    found = diagnose_device(shallow_golden, f"tests.diagnose.test_parts:load,what={what}{shown}", "float32", limit=60)
    assert [(cause.hypothesis, said in cause.says) for cause in found.causes] == [(name, True)], found.causes


def load(target, drafter, k, precision, what):
    made = device.load(target, drafter, k, precision)
    weight, place, factor, *_ = WRONG[what]
    held = np.array(made.target.layers[1][weight])
    held[place] = (held[place].astype(np.float32) * factor).astype(held.dtype)
    made.target.layers[1][weight] = held
    return made
