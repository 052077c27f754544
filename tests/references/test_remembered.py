"""Layers that compute once what many runs ask of them: what a run hands over is the same bit for bit."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from parity.references.counterfactual import Counterfactuals
from parity.references.hypotheses import HYPOTHESES
from parity.references.remembered import RememberedLayers
from parity.stages import declared
from parity.trace import ForcingTrace, Trace, forced_names
from tests.sample import cover

BY_ID = {hypothesis.id: hypothesis for hypothesis in HYPOTHESES}
IDS = [(7 * place) % 500 + 20 for place in range(24)]
CASES = {
    "attn-sinks-missing": 3,  # a function of the attention
    "ffn-top-k": None,  # an attribute of every router
    "ffn-gate-up-bias-missing": 5,  # a weight
    "rope-missing-q": 2,  # a function of transformers' module
    "tap-behind-attention": None,  # what is read inside a layer
    "rollback-noop": "target",  # cached rows
    "input-position-plus-one": None,  # the drafter alone
}
"""Hypothesis and value; None is its first one."""


@pytest.fixture(scope="module")
def counterfactuals(tiny):
    return Counterfactuals(tiny / "target", tiny / "drafter", 4)


def handed_over(counterfactuals, assumed, mode: str):
    """Every stage of three rounds, forced from the references' own."""
    names = declared(8, 4)
    truth = Trace(names)
    counterfactuals.run((), IDS, 8, truth, 3)
    trace = ForcingTrace(names, lambda round_, stage: truth.tensors.get((round_, stage)), forced_names(mode, names))
    counterfactuals.run(assumed, IDS, 8, trace, 3)
    return trace.tensors


@pytest.mark.parametrize(("name", "mode"), cover(product(CASES, ["local", "chained"])))
def test_a_run_hands_over_what_it_would_without_a_memory(name, mode, counterfactuals, monkeypatch):
    hypothesis = BY_ID[name]
    assumed = [(hypothesis, CASES[name] or hypothesis.values[0])]
    again, given = RememberedLayers._again, []
    monkeypatch.setattr(RememberedLayers, "_again", lambda *passed: given.append(passed[1]) or again(*passed))
    handed_over(counterfactuals, assumed, mode)  # or a hypothesis of every layer has none that it was run with before
    remembered = handed_over(counterfactuals, assumed, mode)
    assert given, "a layer was given again"
    monkeypatch.setattr(RememberedLayers, "_is_loaded", lambda *_: False)
    computed = handed_over(counterfactuals, assumed, mode)
    assert remembered.keys() == computed.keys()
    assert not [place for place, value in computed.items() if not np.array_equal(value, remembered[place])]
