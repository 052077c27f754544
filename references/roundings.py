"""Other roundings of the same model: every weight's contraction in another order, and floors pooled over several.

One run in bfloat16 is one draw of its rounding errors. Permuting the axis that a weight is summed over changes
nothing in exact arithmetic and draws anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts, GptOssTopKRouter

from parity.trace import Tensors


@dataclass
class Contraction:
    """A module that sums over `axis` of its `weight`, in the order in which its input comes."""

    module: nn.Module
    weight: torch.Tensor
    axis: int
    order: torch.Tensor

    def hook(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The input [..., n] in this order."""
        return (args[0][..., self.order], *args[1:])

    def reorder(self, order: torch.Tensor) -> None:
        """Take the sum in this order from now on."""
        self.weight.data = self.weight.data.index_select(self.axis, self.order.argsort()[order])
        self.order = order


class Roundings:
    """The roundings of some models, by number; 0 is the order of the checkpoint, and leaves the models as they were.

    Linear layers, the router and the experts' input vary; sums over heads, keys and norms do not.
    """

    def __init__(self, *models: nn.Module):
        self.contractions = [one for model in models for module in model.modules() for one in _contractions(module)]
        self.hooked: list[RemovableHandle] = []

    def choose(self, number: int) -> None:
        """Compute with this rounding from now on."""
        draw = torch.Generator().manual_seed(number)
        while self.hooked:
            self.hooked.pop().remove()
        if number:
            self.hooked = [one.module.register_forward_pre_hook(one.hook) for one in self.contractions]
        for one in self.contractions:
            count = len(one.order)
            one.reorder(torch.randperm(count, generator=draw) if number else torch.arange(count))


def _contractions(module: nn.Module) -> Iterator[Contraction]:
    if isinstance(module, nn.Linear | GptOssTopKRouter):
        yield Contraction(module, module.weight, 1, torch.arange(module.weight.shape[1]))
    elif isinstance(module, GptOssExperts):
        yield Contraction(module, module.gate_up_proj, 1, torch.arange(module.gate_up_proj.shape[1]))


def pooled(truth: Tensors, passes: Iterable[Tensors]) -> Tensors:
    """One floor out of several passes over the same tokens.

    The truth plus the root mean square error of the passes, element by element, with the first pass's signs;
    float32, because it stands for an error and not for a value. Integers are the first pass's, and so is
    every stage in which all passes agree bit for bit.
    """
    passes = iter(passes)
    first = next(passes)
    squares = {place: _error(truth, first, place) ** 2 for place in first if first[place].dtype.kind not in "iub"}
    count, differ = 1, set()
    for other in passes:
        count += 1
        for place in squares:
            squares[place] += _error(truth, other, place) ** 2
        differ |= {place[1] for place in squares if not np.array_equal(first[place], other[place])}
    found = dict(first)
    for place in (place for place in squares if place[1] in differ):
        error = np.copysign(np.sqrt(squares[place] / count), _error(truth, first, place))
        found[place] = truth[place].astype(np.float32) + error
    return found


def _error(truth: Tensors, other: Tensors, place: tuple[int, str]) -> np.ndarray:
    return other[place].astype(np.float32) - truth[place].astype(np.float32)
