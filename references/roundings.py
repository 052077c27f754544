"""Other roundings of the same model: every weight's contraction in another order, and floors pooled over several.

One run in bfloat16 is one draw of its rounding errors. Permuting the axis that a weight is summed over changes
nothing in exact arithmetic; but a float32 sum in another order hardly ever tips the one rounding that follows it. So
the outputs of linear layers are rounded up or down by chance as well, in proportion to how near each neighbour is: all
that is computed from them is then drawn anew. Such a rounding has up to twice the variance of the nearest one: a pass
is scaled so that each stage has the error of the first, and what is drawn anew is how much of it falls on which row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts, GptOssTopKRouter

from parity.trace import Recorded


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

    The order of sums varies in linear layers, the router and the experts' input; sums over heads, keys and norms keep
    theirs. Linear layers in bfloat16 round by chance.
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
            by_chance = partial(_by_chance, draw)
            linears = [one.module for one in self.contractions if isinstance(one.module, nn.Linear)]
            self.hooked += [linear.register_forward_hook(by_chance, prepend=True) for linear in linears]
        for one in self.contractions:
            count = len(one.order)
            one.reorder(torch.randperm(count, generator=draw) if number else torch.arange(count))


def _contractions(module: nn.Module) -> Iterator[Contraction]:
    if isinstance(module, nn.Linear | GptOssTopKRouter):
        yield Contraction(module, module.weight, 1, torch.arange(module.weight.shape[1]))
    elif isinstance(module, GptOssExperts):
        yield Contraction(module, module.gate_up_proj, 1, torch.arange(module.gate_up_proj.shape[1]))


def linear_by_chance(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, draw: torch.Generator
) -> torch.Tensor:
    """A linear layer's float32 sums of bfloat16 x [..., in], rounded to bfloat16 [..., out]: up with the probability of
    the share that is cut off."""
    sums = functional.linear(x.float(), weight.float(), None if bias is None else bias.float())
    cut = torch.randint(0, 1 << 16, sums.shape, generator=draw, dtype=torch.int32)
    return ((sums.view(torch.int32) + cut) & -(1 << 16)).view(torch.float32).to(torch.bfloat16)


def _by_chance(draw: torch.Generator, module: nn.Linear, args: tuple[Any, ...], out: torch.Tensor) -> Any:
    """The output of a linear module, drawn where it is bfloat16."""
    return linear_by_chance(args[0], module.weight, module.bias, draw) if out.dtype == torch.bfloat16 else None


def pooled(truth: Recorded, passes: Iterable[Recorded]) -> Recorded:
    """One floor out of several passes over the same tokens.

    The truth plus the root mean square error of the passes, element by element, with the first pass's signs;
    float32, because it stands for an error and not for a value. Every further pass is scaled so that a stage's error
    over all rounds is the first pass's. Integers are the first pass's, and so is every stage in which all passes agree
    bit for bit. A single pass is the floor.
    """
    passes = iter(passes)
    first = next(passes)
    second = next(passes, None)
    if second is None:
        return first
    errors = {place: _error(truth, first, place) for place in first if first[place].dtype.kind not in "iub"}
    squares, sizes = {place: error**2 for place, error in errors.items()}, _sizes(errors)
    count, differ = 1, set()
    for other in chain([second], passes):
        count += 1
        drawn = {place: _error(truth, other, place) for place in errors}
        own = _sizes(drawn)
        for place, error in drawn.items():
            squares[place] += error**2 * np.float32(sizes[place[1]] / own[place[1]] if own[place[1]] else 1.0)
        differ |= {place[1] for place in errors if not np.array_equal(first[place], other[place])}
    found = dict(first)
    for place in (place for place in errors if place[1] in differ):
        found[place] = truth[place].astype(np.float32) + np.copysign(np.sqrt(squares[place] / count), errors[place])
    return found


def _sizes(errors: Recorded) -> dict[str, float]:
    """The squared error of each stage over all rounds; of what is not finite, none."""
    sizes: dict[str, float] = {}
    for (_, stage), error in errors.items():
        size = float(np.square(error, dtype=np.float64).sum())
        sizes[stage] = sizes.get(stage, 0.0) + (size if np.isfinite(size) else 0.0)
    return sizes


def _error(truth: Recorded, other: Recorded, place: tuple[int, str]) -> np.ndarray:
    return other[place].astype(np.float32) - truth[place].astype(np.float32)
