"""In which layers a stage fails: what a defect that sits in some of them has in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LayerRule:
    """Some layers in words, which of given layers [n] they are (bool [n]), and whether a number was chosen for it."""

    says: str
    holds: Callable[[np.ndarray], np.ndarray]
    chosen: bool = True


def layer_rules(least: int, most: int) -> Iterator[LayerRule]:
    """What may be true of layers between two of them, the simplest first; -1 is no layer."""
    yield LayerRule(f"layer {least} only", lambda layers: layers == least)
    yield LayerRule("odd layers only", lambda layers: (layers >= 0) & (layers % 2 == 1), chosen=False)
    yield LayerRule("even layers only", lambda layers: (layers >= 0) & (layers % 2 == 0), chosen=False)
    yield LayerRule(f"from layer {least} on", lambda layers: layers >= max(least, 0))
    yield LayerRule(f"up to layer {most}", lambda layers: (layers >= 0) & (layers <= most))


def layers_in_common(failing: Sequence[int], judged: Sequence[int]) -> str:
    """The failing ones of the layers that are judged, in words; '' where one alone is judged, or none fails.

    Args:
        failing, judged: numbers of layers, in order; all that fail are judged.
    """
    if len(judged) < 2 or not failing:
        return ""
    wrong = np.isin(judged, failing)
    rules = layer_rules(failing[0], failing[-1])
    fitting = (rule.says for rule in rules if np.array_equal(rule.holds(np.array(judged)), wrong))
    said = "every layer" if wrong.all() else next(fitting, f"layers {', '.join(map(str, failing))}")
    return f"{said} ({len(failing)} of {len(judged)})"
