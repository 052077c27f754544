"""Queries, keys and values made anew for the rows of a pass: from other inputs, by other weights, behind another norm.

Rows of earlier passes keep the keys and values that the caches have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parity.references.hypotheses.mutating import layers_of
from parity.references.products import norm_changes, norms
from parity.references.products.attention.operands import Pass
from parity.references.products.product import FLOATS, in_block_formats, in_formats, kept_in
from parity.references.products.rotated import by_tables, other_positions

ALL_THREE = "queries, keys and values"
SIDES = {"queries": "q", "keys": "k", "values": "v", "queries and keys": "qk", ALL_THREE: "qkv"}
STARTS = (16, 32, 64, 128)
"""Rows of a pass, or columns, at which a tile ends."""

SMALL = 1e-6
"""A norm's weight below this gives rows that say nothing of another weight."""


@dataclass(frozen=True)
class Projected:
    """What makes q, k and v of a pass: rows [S, D] that enter, weights and biases, cos and sin [S, d / 2].

    `streams` are what the norms before take, [S, H] each; none where they are not told.
    """

    x: Tensor
    weights: dict[str, tuple[Tensor, Tensor | None]]
    cos: Tensor
    sin: Tensor
    streams: tuple[Tensor, ...] = ()

    def heads(self, side: str, x: Tensor, size: int) -> Tensor:
        """One of the three, [heads, S, size], rotated where it is to be."""
        weight, bias = self.weights[side]
        made = x @ weight.T if bias is None else x @ weight.T + bias
        heads: Tensor = made.unflatten(1, (-1, size)).transpose(0, 1)
        return heads if side == "v" else by_tables(heads, self.cos, self.sin)

    def put(self, one: Pass, sides: str, x: Tensor, behind: Callable[[Tensor], Tensor] = lambda made: made) -> Pass:
        """A pass with these sides made anew, of its own rows; `behind` changes what is made [heads, S, size]."""
        changed: dict[str, Any] = {}
        for side in sides:
            held = getattr(one, side)
            made = behind(self.heads(side, x, held.shape[-1]))
            changed[side] = torch.cat((held[:, : held.shape[1] - made.shape[1]], made), dim=1)
        return replace(one, **changed)


Anew = Callable[[Pass, Projected], Pass]


def weights_of(attention: Any) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Weight and bias of each projection, float64."""
    held = {side: getattr(attention, f"{side}_proj") for side in "qkv"}
    return {
        side: (one.weight.detach().double(), None if one.bias is None else one.bias.detach().double())
        for side, one in held.items()
    }


def of_projections(loop: Any, side: str, number: int) -> Iterator[tuple[str, Anew]]:
    """Each change with what it says."""
    layers = dict(layers_of(loop, side, "all"))
    yield "the value bias is added behind the shares", _bias_behind
    for what, sides in {"query bias": "q", "key bias": "k", "biases of queries and keys": "qk"}.items():
        yield f"the {what} of the pass behind the rotation", partial(_bias_behind_rotation, sides=sides)
    for what, sides in SIDES.items():
        for says, behind in _made(len(layers[number].self_attn.q_proj.weight)):
            yield f"the {what} of the pass {says}", partial(_behind, sides=sides, change=behind)
        if "v" not in sides:
            for says, turned in other_positions():
                yield f"the {what} of the pass turned {says}", partial(_turned, sides=sides, turned=turned)
        for says, change in of_inputs():
            yield f"{says} for the {what}", partial(_entering, sides=sides, change=change)
        for says, weight in of_norm_weights(layers, number):
            yield f"{says} for the {what}", partial(_entering, sides=sides, change=partial(torch.mul, other=weight))
        if what == ALL_THREE:
            for says, normed in of_streams(layers[number]):
                yield says, partial(_normed_otherwise, change=normed)
        for says, reweigh in (*_weights(layers, number), *_orders(layers[number].self_attn.config.head_dim)):
            yield f"{says} for the {what}", partial(_reweighed, sides=sides, change=reweigh)


def of_inputs() -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Other rows [S, D] that enter."""
    yield "the row before", lambda x: x.roll(1, 0)
    yield "the row behind", lambda x: x.roll(-1, 0)
    yield "the halves of the input exchanged", lambda x: x.roll(x.shape[1] // 2, 1)
    yield "the first half of the input left out", lambda x: torch.cat((0 * _half(x, 0), _half(x, 1)), dim=1)
    yield "the second half of the input left out", lambda x: torch.cat((_half(x, 0), 0 * _half(x, 1)), dim=1)
    yield "the first half of the input twice", lambda x: torch.cat((_half(x, 0), _half(x, 0)), dim=1)
    yield "the second half of the input twice", lambda x: torch.cat((_half(x, 1), _half(x, 1)), dim=1)
    yield from ((f"the input in {name}", low) for name, low in in_formats())


def _made(width: int) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Other heads [N, S, size] than those that were made."""
    yield "are zeros", lambda made: made * 0
    yield "are those of the row before", lambda made: made.roll(1, 1)
    yield "are those of the row behind", lambda made: made.roll(-1, 1)
    yield "are those of the head or group behind", lambda made: made.roll(-1, 0)
    yield "are those of the head or group before", lambda made: made.roll(1, 0)
    yield "have their heads or groups in reverse", lambda made: made.flip(0)
    yield "have neighbouring heads or groups exchanged", _neighbours
    yield "are laid out with heads or groups inside their columns", _inside
    yield "are read as if heads or groups lay inside their columns", _outside
    yield from ((f"are kept in {name}", low) for name, low in in_formats())
    for first in STARTS:
        yield f"from row {first} on are zeros", partial(_from, first=first, change=torch.zeros_like)
        yield (
            f"from row {first} on have neighbouring heads or groups exchanged",
            partial(_from, first=first, change=_neighbours),
        )
        yield f"before row {first} are zeros", partial(_before, first=first)
        if first < width:
            yield f"hold the {first} columns before as well", partial(_added, columns=first)
            yield f"are those of {first} columns before", partial(_shifted, columns=first)


def _neighbours(made: Tensor) -> Tensor:
    """Heads exchanged two by two; the last of an odd number stays."""
    order = [place ^ 1 if place ^ 1 < len(made) else place for place in range(len(made))]
    return made[order]


def _inside(made: Tensor) -> Tensor:
    """Rows [S, size, N] in memory that is read as [S, N, size]."""
    return made.permute(1, 2, 0).reshape(made.shape[1], len(made), -1).transpose(0, 1)


def _outside(made: Tensor) -> Tensor:
    """Rows [S, N, size] in memory that is read as [S, size, N]."""
    return made.transpose(0, 1).reshape(made.shape[1], -1, len(made)).permute(2, 0, 1)


def _from(made: Tensor, first: int, change: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.cat((made[:, :first], change(made[:, first:])), dim=1)


def _before(made: Tensor, first: int) -> Tensor:
    return torch.cat((0 * made[:, :first], made[:, first:]), dim=1)


def _shifted(made: Tensor, columns: int) -> Tensor:
    """Columns [N * size] of each row, so many further."""
    flat = made.transpose(0, 1).flatten(1)
    shifted: Tensor = flat.roll(columns, 1).unflatten(1, (len(made), -1)).transpose(0, 1)
    return shifted


def _added(made: Tensor, columns: int) -> Tensor:
    return made + _shifted(made, columns)


def _bias_behind(one: Pass, projected: Projected) -> Pass:
    """Values without their bias; it joins what is mixed, of which a sink takes nothing then."""
    bias = projected.weights["v"][1]
    if bias is None:
        return one
    bias = bias.unflatten(0, (len(one.v), -1))
    return replace(one, v=one.v - bias[:, None], added=bias)


def _bias_behind_rotation(one: Pass, projected: Projected, sides: str) -> Pass:
    for side in sides:
        weight, bias = projected.weights[side]
        if bias is not None:
            without = replace(projected, weights=projected.weights | {side: (weight, None)})
            one = without.put(one, side, projected.x, partial(torch.add, other=bias.view(-1, 1, one.q.shape[-1])))
    return one


Turned = Callable[[Tensor], Tensor]


def _turned(one: Pass, projected: Projected, sides: str, turned: Turned) -> Pass:
    of = one.rotation
    if of is None:
        return one
    angles = of.angles(turned(torch.arange(of.first, of.first + len(projected.x)).double()))
    other = replace(projected, cos=angles.cos() * of.scale, sin=angles.sin() * of.scale)
    return other.put(one, sides, projected.x)


def _behind(one: Pass, projected: Projected, sides: str, change: Callable[[Tensor], Tensor]) -> Pass:
    return projected.put(one, sides, projected.x, change)


def _half(x: Tensor, which: int) -> Tensor:
    return x.chunk(2, dim=1)[which]


def norms_before(layer: Any) -> dict[str, Any]:
    """The norms before a layer's projections by what they are called; one that fuses has two, side by side."""
    hidden = getattr(layer, "hidden_norm", None)
    if hidden is None:
        return {"the norm": layer.input_layernorm}
    return {"the embedding's norm": layer.input_layernorm, "the hidden's norm": hidden}


def of_norm_weights(layers: dict[int, Any], number: int) -> Iterator[tuple[str, Tensor]]:
    """Factors [D] that put another norm's weight in the place of the one before the projections."""
    pair = [*norms_before(layers[number]).values()]
    own = [norm.weight.detach().double() for norm in pair]
    ones = [torch.ones_like(weight) for weight in own]
    for place, name in enumerate(norms_before(layers[number])):
        for whose, other in _others(layers, number, pair, place):
            factors = [*ones]
            weight = own[place]
            factors[place] = torch.where(weight.abs() > SMALL, other / weight, 1.0)
            yield f"{name} {whose}", torch.cat(factors)


def of_streams(layer: Any) -> Iterator[tuple[str, Callable[[Sequence[Tensor]], Tensor]]]:
    """What the projections take [S, D] from other norms of the streams [S, H]."""
    named = norms_before(layer)
    held = [norms.weight_and_eps(norm) for norm in named.values()]
    for place, name in enumerate(named):
        for says, norm in norm_changes.variants(*held[place], ()):
            yield f"{name}: {says}", partial(_one_normed, held=held, place=place, norm=norm)
    if len(held) > 1:
        yield "both norms by one mean square", partial(_normed_together, held=held)


Held = Sequence[tuple[Tensor, float]]
"""Weight and eps of each norm."""


def _one_normed(streams: Sequence[Tensor], held: Held, place: int, norm: norm_changes.Norm) -> Tensor:
    rows = [norm_changes.normed(x, *one) for x, one in zip(streams, held, strict=True)]
    rows[place] = norm(streams[place])
    return torch.cat(rows, dim=1)


def _normed_together(streams: Sequence[Tensor], held: Held) -> Tensor:
    both = torch.cat([*streams], dim=1)
    return norm_changes.normed(both, torch.cat([weight for weight, _ in held]), held[0][1])


def _normed_otherwise(one: Pass, projected: Projected, change: Callable[[Sequence[Tensor]], Tensor]) -> Pass:
    return projected.put(one, "qkv", change(projected.streams)) if projected.streams else one


def _others(layers: dict[int, Any], number: int, pair: Sequence[Any], place: int) -> Iterator[tuple[str, Tensor]]:
    """Weights that may stand in a norm's place."""
    weight = pair[place].weight.detach().double()
    yield "without its weight", torch.ones_like(weight)
    yield "with its weight and one", weight + 1
    beside = {"by the weight of the norm before the MLP": layers[number].post_attention_layernorm}
    if len(pair) > 1:
        beside["by the other's weight"] = pair[1 - place]
    for step, where in ((-1, "before"), (1, "behind")):
        if number + step in layers:
            beside[f"by the weight of the layer {where}"] = layers[number + step].input_layernorm
    for whose, norm in beside.items():
        if norm.weight.shape == weight.shape:
            yield whose, norm.weight.detach().double()


Weights = dict[str, tuple[Tensor, Tensor | None]]


def _weights(layers: dict[int, Any], number: int) -> Iterator[tuple[str, Callable[[Weights, str], Weights]]]:
    """Other weights of a side."""
    for name, dtype in FLOATS.items():
        yield f"the weight in {name}", partial(_coarse, low=partial(kept_in, dtype=dtype))
    for name, low in in_block_formats():
        yield f"the weight in {name}", partial(_coarse, low=low)
    yield "no bias", lambda held, side: held | {side: (held[side][0], None)}
    for other in sorted(layers, key=lambda one: abs(one - number)):
        if other != number:
            yield f"the weight of layer {other}", partial(_of_layer, other=weights_of(layers[other].self_attn))
    yield "keys and values exchanged", lambda held, side: held | {"k": held["v"], "v": held["k"]}


def _orders(size: int) -> Iterator[tuple[str, Callable[[Weights, str], Weights]]]:
    """Rows of a head's weight in another order: a checkpoint for pairs of neighbours read as one for halves."""
    places = torch.arange(size)
    yield "the weight's even rows of a head first", partial(_ordered, order=torch.cat((places[0::2], places[1::2])))
    yield "the weight's rows of a head's halves in turn", partial(_ordered, order=places.view(2, -1).T.flatten())


def _ordered(held: Weights, side: str, order: Tensor) -> Weights:
    weight, bias = (
        one if one is None else one.unflatten(0, (-1, len(order)))[:, order].flatten(0, 1) for one in held[side]
    )
    return held | {side: (torch.as_tensor(weight), bias)}


def _coarse(held: Weights, side: str, low: Callable[[Tensor], Tensor]) -> Weights:
    weight, bias = held[side]
    return held | {side: (low(weight), bias)}


def _of_layer(held: Weights, side: str, other: Weights) -> Weights:
    return held | {side: other[side]} if other[side][0].shape == held[side][0].shape else held


def _entering(one: Pass, projected: Projected, sides: str, change: Callable[[Tensor], Tensor]) -> Pass:
    return projected.put(one, sides, change(projected.x))


def _reweighed(one: Pass, projected: Projected, sides: str, change: Callable[[Weights, str], Weights]) -> Pass:
    weights = projected.weights
    for side in sides:
        weights = weights | {side: change(projected.weights, side)[side]}
    return replace(projected, weights=weights).put(one, sides, projected.x)
