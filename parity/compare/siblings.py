"""In which layers a stage fails: what a defect that sits in some of them has in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import comb

import numpy as np

STRIDES = {3: "third", 4: "fourth"}
"""Layers of which one in so many may be wrong: ranks, stages of a pipeline and repeated blocks take them by turns."""


@dataclass(frozen=True)
class LayerRule:
    """Some layers in words, which of given layers [n] they are (bool [n]), and out of how many rules it is chosen."""

    says: str
    holds: Callable[[np.ndarray], np.ndarray]
    tried: int = 1


def layer_rules(failing: Sequence[int], count: int) -> Iterator[LayerRule]:
    """What may be true of failing layers out of so many, the simplest first; -1 is no layer."""
    wrong = sorted({layer for layer in failing if layer >= 0}) or [-1]
    least, most = wrong[0], wrong[-1]
    yield LayerRule(f"layer {least} only", lambda layers: layers == least, count)
    yield LayerRule("odd layers only", lambda layers: (layers >= 0) & (layers % 2 == 1))
    yield LayerRule("even layers only", lambda layers: (layers >= 0) & (layers % 2 == 0))
    yield LayerRule(f"from layer {least} on", lambda layers: layers >= max(least, 0), count)
    yield LayerRule(f"up to layer {most}", lambda layers: (layers >= 0) & (layers <= most), count)
    if len(wrong) > 1:
        for stride, ordinal in STRIDES.items():
            yield LayerRule(f"every {ordinal} layer from {least} on", partial(_by_turns, least, stride), 2 * count)
    if len(wrong) > 2:
        yield LayerRule(f"layers {least} to {most}", lambda layers: (layers >= least) & (layers <= most), count**2 // 2)
    if len(wrong) > 1:
        told = f"layers {', '.join(map(str, wrong[:-1]))} and {most}"
        yield LayerRule(told, lambda layers: np.isin(layers, wrong), comb(count, len(wrong)))


def _by_turns(first: int, stride: int, layers: np.ndarray) -> np.ndarray:
    return np.asarray((layers >= first) & ((layers - first) % stride == 0))


def layers_in_common(failing: Sequence[int], judged: Sequence[int]) -> str:
    """The failing ones of the layers that are judged, in words; '' where one alone is judged, or none fails.

    Args:
        failing, judged: numbers of layers, in order; all that fail are judged.
    """
    if len(judged) < 2 or not failing:
        return ""
    wrong = np.isin(judged, failing)
    rules = layer_rules(failing, len(judged))
    fitting = (rule.says for rule in rules if np.array_equal(rule.holds(np.array(judged)), wrong))
    said = "every layer" if wrong.all() else next(fitting)
    return f"{said} ({len(failing)} of {len(judged)})"
