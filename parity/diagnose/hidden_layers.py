"""Which layer an error entered by, where a port hides some: back from the first failing layer that is shown.

A layer can be led back nearly without loss, if it is right (`deduced`). Whether it is, its caches tell, where the run
shows them: what is deduced has to give the keys and values that the device has. Where it does, the layer before gave
it. Where it does not, the shown layer is wrong itself. Where nothing tells, the hidden layer is taken for wrong if a
part of its computation explains all of what is deduced, and none of the shown layer's does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from parity.diagnose.causes import parts_of
from parity.diagnose.deduced import HiddenLayers, hidden_before, led_back
from parity.diagnose.residuals import Residual
from parity.diagnose.trials import PromptTrials


def hidden_layers(trials: PromptTrials, failing: Sequence[Residual]) -> HiddenLayers | None:
    """The hidden layers that an error came through, or started in; None where it did not, or that is not known.

    Args:
        trials: of a prompt of a local run.
        failing: what fails there, the first to show first.
    """
    hidden = _before_the_first(trials, failing) if trials.contained else None
    if hidden is None:
        return None
    golden, run = trials.cut(trials.rounds)
    ways = trials.counterfactuals.layers_back(golden, hidden.behind)
    taken = 0
    for led in led_back(golden, run, run.manifest.case.precision, ways, hidden):
        if led.agrees is None:
            return _by_parts(trials, hidden, taken)
        if not led.agrees:
            break
        taken += 1
    return replace(hidden, stages=hidden.stages[:taken]) if taken else None


def _by_parts(trials: PromptTrials, hidden: HiddenLayers, known: int) -> HiddenLayers | None:
    """The hidden layers up to the first of which a part explains all, behind those that are known; these where none
    does."""
    for count in range(known, len(hidden.stages) + 1):
        tried = replace(hidden, stages=hidden.stages[:count])
        stage = tried.stages[-1] if count else hidden.source
        if any(part.whole for part in parts_of(trials.with_hidden(tried if count else None), trials.rounds, stage)):
            return tried if count else None
    return replace(hidden, stages=hidden.stages[:known]) if known else None


def _before_the_first(trials: PromptTrials, failing: Sequence[Residual]) -> HiddenLayers | None:
    """The layers that are hidden in front of the first failing one that is shown, up to one that is shown."""
    golden, run = trials.golden, trials.run
    for left in failing:
        if left.error < inf and left.stage.endswith(".out"):
            hidden = hidden_before(left.stage, golden, run)
            return HiddenLayers(left.stage, tuple(hidden)) if hidden else None
    return None
