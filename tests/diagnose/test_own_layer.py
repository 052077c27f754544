"""A hypothesis of all layers at a stage of one: only its layer is computed where that starts from the golden's rows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from parity.diagnose.residuals import Residual
from parity.diagnose.search.stage_trials import StageTrials
from parity.diagnose.trials import ResidualChange
from parity.stages import declared
from tests.diagnose.toys import Toy

NAMES = declared(3, 2)
OUT = "target.layers.1.out"
SINKS = Toy("sinks", "target.layers.*.attn_out", lambda *of: None, values=("all",), layered=True)
ROUTER = Toy("router", "target.layers.*.router_logits", lambda *of: None, values=("all",))


def asked_of(hypothesis: Toy, given: set[str], unshown: tuple[int, ...] = (), contained: bool = True) -> list:
    """The values that references are run with, where these stages are given and not in those rounds."""
    made = []

    def weigh(known, assumed, rounds, stages, last, own_floor):
        made.append(assumed[0][1])
        left = Residual(OUT, True, 0.5, 5.0, 5.0, None)
        return ResidualChange({OUT: left}, {OUT: left})

    failing = Residual(OUT, True, 1.0, 9.0, 9.0, None)
    trials = SimpleNamespace(
        golden=SimpleNamespace(declared=NAMES),
        run=SimpleNamespace(followed=given, follows=lambda round_, name: name in given and round_ not in unshown),
        contained=contained,
        rounds=4,
        segment=lambda first: ["target.layers.1.attn_out", "target.layers.1.router_logits", OUT],
        failing_passes=lambda first: "",
        before=lambda *of: failing,
        weigh=weigh,
        clock=SimpleNamespace(progress=lambda *of: None),
    )
    stage = StageTrials(trials, [hypothesis], (), failing)
    asked = [*stage.each(((hypothesis, value),) for value in stage.values(hypothesis))]
    assert [trial.assumed[0][1] for trial in asked] == stage.values(hypothesis)
    return made


LAYERS = {"target.layers.0.out", *(f"kv.target.{layer}.{part}" for layer in range(3) for part in "kv")}


def test_all_layers_and_its_own_are_one_run():
    assert asked_of(SINKS, LAYERS) == [1]


@pytest.mark.parametrize(
    ("given", "unshown", "contained"),
    [(LAYERS - {"target.layers.0.out"}, (), True), (LAYERS, (3,), True), (LAYERS, (), False), (set(), (), True)],
    ids=["rows of the layer before are its own", "in one round", "chained", "nothing given"],
)
def test_where_layers_inherit_all_of_them_are_run(given, unshown, contained):
    assert asked_of(SINKS, given, unshown, contained) == ["all", 1]


def test_what_is_not_of_a_layer_is_run_as_it_is():
    assert asked_of(ROUTER, LAYERS) == ["all"]
