"""A threshold that was fitted at one stage, or the layer in which a cause was found, is found anew where it leaves the
next one wrong."""

from __future__ import annotations

from math import log
from types import SimpleNamespace

import pytest

from parity.diagnose.refit import refitted
from parity.diagnose.residuals import Residual
from parity.diagnose.trials import ResidualChange
from parity.references.hypotheses.catalogue import Fit
from tests.meta.plants import OUT, Q

SETTLED = {Q: (0.03, 0.07), OUT: (0.045, 0.055)}
"""Between which thresholds no row of a stage is wrong."""


def left(name: str, value: float) -> Residual:
    low, high = SETTLED[name]
    error = max(log(low / value), log(value / high), 0.0)
    return Residual(name, error > 0, error, None, error, None, settled=error == 0)


START = {name: Residual(name, True, 1.0, None, 9.0, None) for name in SETTLED}
THRESHOLD = SimpleNamespace(
    id="threshold", stages=(Q, OUT), part="", layered=False, fit=Fit(2**-8, 8.0, clean=None, log=True)
)


def trials(*never: str):
    def after(value: float) -> dict[str, Residual]:
        return {name: START[name] if name in never else left(name, value) for name in SETTLED}

    return SimpleNamespace(
        segment=lambda residual: [residual.stage],
        weigh=lambda others, assumed, rounds, stages: ResidualChange(START, after(assumed[0][1])),
        residuals=lambda known, rounds: after(known[-1][1]),
    )


@pytest.mark.parametrize("value", [0.031, 0.069])
def test_it_takes_the_value_that_explains_both_stages(value):
    assert left(Q, value).settled and left(OUT, value).red
    known, rest = refitted(trials(), ((THRESHOLD, value),), START, left(OUT, value), 1)
    assert SETTLED[OUT][0] <= known[0][1] <= SETTLED[OUT][1] and not any(each.red for each in rest.values())


def test_a_cause_that_no_value_makes_explain_the_next_stage_keeps_its_own():
    assert refitted(trials(OUT), ((THRESHOLD, 0.031),), START, left(OUT, 0.031), 1) is None
    fixed = SimpleNamespace(id="fixed", stages=(Q, OUT), part="", layered=False, fit=None)
    assert refitted(trials(), ((fixed, 0.031),), START, left(OUT, 0.031), 1) is None


LAYERS = {f"target.layers.{layer}.attn_out": layer for layer in (1, 4, 5, 7)}
SINKS = SimpleNamespace(id="sinks", stages=("target.layers.*.attn_out",), part="", fit=None, layered=True)


def of_layers(*settled: int):
    """Trials where a hypothesis brings these layers back to their floors, if its value has them."""
    start = {name: Residual(name, True, 1.0, None, 9.0, None) for name in LAYERS}

    def after(value: int | tuple[int, ...]) -> dict[str, Residual]:
        within = {*settled} & {*(value if isinstance(value, tuple) else (value,))}
        right = {name: Residual(name, False, 0.0, None, 0.0, None, settled=True) for name in LAYERS}
        return {name: right[name] if layer in within else start[name] for name, layer in LAYERS.items()}

    return start, SimpleNamespace(
        segment=lambda residual: [residual.stage],
        golden=SimpleNamespace(declared={name: SimpleNamespace(layer=layer) for name, layer in LAYERS.items()}),
        weigh=lambda others, assumed, rounds, stages: ResidualChange(start, after(assumed[0][1])),
        residuals=lambda known, rounds: after(known[-1][1]),
    )


def test_a_cause_in_one_layer_is_one_of_all_layers_that_pass_with_it():
    start, trials = of_layers(1, 4, 7)
    known, rest = refitted(trials, ((SINKS, 1),), start, start["target.layers.4.attn_out"], 1)
    assert known == ((SINKS, (1, 4, 7)),)
    assert [name for name, left in rest.items() if left.red] == ["target.layers.5.attn_out"]


def test_a_layer_that_fails_with_it_all_the_same_is_not_among_them():
    start, trials = of_layers(1, 7)
    assert refitted(trials, ((SINKS, 1),), start, start["target.layers.4.attn_out"], 1) is None
    assert refitted(trials, ((SINKS, "all"),), start, start["target.layers.7.attn_out"], 1) is None
