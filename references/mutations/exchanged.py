"""Weights in each other's places: two experts of a layer, two layers of a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from parity.references.mutations import NotApplicable, changed, layers_of, reweighted, together

EXPERT_PARTS = {
    "all": ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias"),
    "gate_up": ("gate_up_proj",),
    "gate_up and its bias": ("gate_up_proj", "gate_up_proj_bias"),
    "down": ("down_proj",),
    "down and its bias": ("down_proj", "down_proj_bias"),
}


def experts(loop: Any, value: tuple[int, int, int], part: str) -> AbstractContextManager:
    """Two experts of one layer, `value` = (layer, expert, other expert), hold each other's `part`."""
    number, one, other = value
    held = layers_of(loop, "target", number)[0][1].mlp.experts
    order = torch.arange(loop.target.config.num_local_experts)
    if one == other or not all(0 <= place < len(order) for place in (one, other)):
        raise NotApplicable(f"experts {one} and {other} of {len(order)}")
    order[[one, other]] = order[[other, one]]
    return together(changed(getattr(held, name), lambda w: w[order]) for name in EXPERT_PARTS[part])


def layers(loop: Any, value: tuple[int, int] | str, side: str, part: str | None = None) -> AbstractContextManager:
    """Layers hold others' weights: two each other's, or each the next (previous) one's; all of it or one module."""
    found = {number: layer for number, layer in layers_of(loop, side) if side == "target" or number}
    numbers = list(found)
    if isinstance(value, str):
        step = {"the next one's": 1, "the previous one's": -1}[value]
        others = {number: numbers[(place + step) % len(numbers)] for place, number in enumerate(numbers)}
    else:
        if value[0] == value[1] or not set(value) <= found.keys():
            raise NotApplicable(f"layers {value} of {numbers}")
        others = {value[0]: value[1], value[1]: value[0]}
    modules = {number: getattr(layer, part) if part else layer for number, layer in found.items()}
    return together([context for pair in others.items() for context in _taking(modules, *pair)])


def _taking(modules: dict[int, torch.nn.Module], one: int, other: int) -> Iterator[AbstractContextManager]:
    theirs = {name: tensor.data for name, tensor in modules[other].named_parameters()}
    for name, tensor in modules[one].named_parameters():
        if not torch.equal(tensor.data, theirs[name]):
            yield reweighted(tensor, theirs[name])
