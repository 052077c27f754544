"""In which layers a stage fails: what a defect that sits in some of them has in common."""

from __future__ import annotations

from collections.abc import Sequence


def layers_in_common(failing: Sequence[int], judged: Sequence[int]) -> str:
    """The failing ones of the layers that are judged, in words; '' where one alone is judged, or none fails.

    Args:
        failing, judged: numbers of layers, in order; all that fail are judged.
    """
    if len(judged) < 2 or not failing:
        return ""
    rules = (
        (f"layer {failing[0]} only", failing[:1]),
        ("every layer", judged),
        ("odd layers only", [layer for layer in judged if layer % 2]),
        ("even layers only", [layer for layer in judged if layer % 2 == 0]),
        (f"from layer {failing[0]} on", [layer for layer in judged if layer >= failing[0]]),
        (f"up to layer {failing[-1]}", [layer for layer in judged if layer <= failing[-1]]),
    )
    listed = f"layers {', '.join(map(str, failing))}"
    said = next((says for says, layers in rules if list(layers) == list(failing)), listed)
    return f"{said} ({len(failing)} of {len(judged)})"
