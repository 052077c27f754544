"""Weights that a loader puts where they do not belong, or packs and unpacks another way."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import combinations

from parity.references.hypotheses.catalogue import Family, Fit, Mutation
from parity.references.hypotheses.experts import weighing
from parity.references.hypotheses.inference import LayerPair, exchanged_experts
from parity.references.hypotheses.lazily import Loop, torch
from parity.references.hypotheses.mutating import (
    Layer,
    Layers,
    NotApplicable,
    changed,
    layers_of,
    reweighted,
    target_layers,
    together,
)
from parity.references.hypotheses.routing import FFN

MOST_LAYERS = {"target": 8, "drafter": 5}
"""Pairs are tried one by one among so many layers; of deeper models the device's own errors tell them."""

mxfp4 = Family(stages=FFN)


def neighbours(loop: Loop, value: Layers, parts: tuple[str, ...], axis: int = 1) -> Mutation:
    """Each pair of neighbours swapped, inputs (`axis` 1) or outputs (2).

    Bytes hold two inputs in MXFP4; the same swap comes about where a loader packs an unquantised checkpoint itself.
    """
    change = lambda w: w.unflatten(axis, (-1, 2)).flip(axis + 1).flatten(axis, axis + 1)  # noqa: E731
    return weighing(loop, value, parts, change)


def block_scale(loop: Loop, factor: float, parts: tuple[str, ...]) -> Mutation:
    """Block scales off by a power of two, or weights packed with them."""
    return weighing(loop, "all", parts, lambda w: w * factor)


def behind_the_end(loop: Loop, factor: float, parts: tuple[str, ...]) -> Mutation:
    """The scale of the last expert's last block of 32 inputs, which is read where a tensor ends, off by a factor."""

    def change(w: torch.Tensor) -> torch.Tensor:
        w = w.clone()
        w[-1, -32:] *= factor
        return w

    return weighing(loop, "all", parts, change)


# E2M1, the OCP microscaling formats, 5.3.3: its three bits are 0, 0.5, 1, 1.5, 2, 3, 4 and 6
EDGES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Between them; of a checkpoint that is not quantised the numbers nearest to a code are off as it is."""
TIMES = {
    "as zero where they are subnormal": (0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
    "with a leading one where they are subnormal": (1.0, 1.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
    "as 4 where they are 6": (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 4 / 6),
    "as whole numbers of three bits": (1.0, 2.0, 2.0, 2.0, 2.0, 5 / 3, 6 / 4, 7 / 6),
}
"""How many times as large each is that is read otherwise."""
UNSIGNED = "without their sign"


def read_otherwise(loop: Loop, value: str, parts: tuple[str, ...]) -> Mutation:
    """Four-bit codes of another meaning, in blocks of 32 inputs whose scales are right."""

    def change(w: torch.Tensor) -> torch.Tensor:
        if value == UNSIGNED:
            return w.abs()
        blocks = w.unflatten(1, (-1, 32))
        nearest = torch.bucketize((blocks / _scales_of(blocks)).abs().float(), torch.tensor(EDGES))
        read: torch.Tensor = blocks * torch.tensor(TIMES[value])[nearest].to(w.dtype)
        return read.flatten(1, 2)

    return weighing(loop, "all", parts, change)


def _scales_of(blocks: torch.Tensor) -> torch.Tensor:
    """The power of two of each block [E, blocks, 32, out] by which its numbers are codes: the largest is 4 or 6, or
    less in a block without large ones, which shows where none is half a code."""
    largest = blocks.abs().amax(2, keepdim=True).clamp(min=1e-30)
    scales = (largest.log2().floor() - 2).exp2()
    halves = ((blocks / scales) % 1 != 0).any(2, keepdim=True)
    found: torch.Tensor = torch.where(halves, scales, 2 * scales)
    return found


for end, parts in (("", ("gate_up_proj", "down_proj")), ("-gate-up", ("gate_up_proj",)), ("-down", ("down_proj",))):
    names = " and ".join(parts)
    mxfp4(
        f"load-mxfp4-nibbles{end}",
        f"MXFP4: the high nibble is taken first, neighbouring inputs of {names} swap",
        layered=True,
        fix="low nibble first",
        seen=("code paths of gpt-oss loaders",),
    )(partial(neighbours, parts=parts))
    mxfp4(
        f"load-mxfp4-scale{end}",
        f"MXFP4: block scales of {names} are {{value:g}} times what they should be",
        values=(2.0, 0.5, 4.0, 0.25),
        fit=Fit(1 / 64, 64.0, clean=1.0, log=True),
        fix="value * 2 ** (scale - 127)",
    )(partial(block_scale, parts=parts))
    mxfp4(
        f"load-mxfp4-codes{end}",
        f"MXFP4: codes of {names} are read {{value}}",
        values=(*TIMES, UNSIGNED),
        fix="E2M1: a sign, two bits of exponent, one behind the point; without an exponent 0 and 0.5",
    )(partial(read_otherwise, parts=parts))
    mxfp4(
        f"load-nibbles-outputs{end}",
        f"neighbouring outputs of {names} swap, as if two shared a byte",
        layered=True,
        fix="MXFP4 packs neighbours of the input axis",
    )(partial(neighbours, parts=parts, axis=2))
    mxfp4(
        f"load-scales-past-end{end}",
        f"MXFP4: the last block of inputs of {names} of the last expert is {{value:g}} times what it should be",
        values=(0.0, 0.5, 2.0),
        fix="scales of the last block lie inside the tensor, whatever the width is padded to",
        seen=("sglang#36456",),
    )(partial(behind_the_end, parts=parts))

exchanged = Family(stages=FFN)


def experts(loop: Loop, value: tuple[int, int, int], parts: tuple[str, ...]) -> Mutation:
    """Two experts of one layer, `value` = (layer, expert, other expert), hold each other's `parts`."""
    number, one, other = value
    ((_, layer),) = target_layers(loop, number)
    order = torch.arange(loop.target.config.num_local_experts)
    if one == other or not all(0 <= place < len(order) for place in (one, other)):
        raise NotApplicable(f"experts {one} and {other} of {len(order)}")
    order[[one, other]] = order[[other, one]]
    return together(changed(getattr(layer.mlp.experts, part), lambda w: w[order]) for part in parts)


GATE_UP, DOWN = ("gate_up_proj", "gate_up_proj_bias"), ("down_proj", "down_proj_bias")
for end, says, held in (
    ("", "all", GATE_UP + DOWN),
    ("-gate-up", "gate_up", GATE_UP[:1]),
    ("-gate-up-and-bias", "gate_up and its bias", GATE_UP),
    ("-down", "down", DOWN[:1]),
    ("-down-and-bias", "down and its bias", DOWN),
):
    exchanged(
        f"load-experts-exchanged{end}",
        f"(layer, expert, other): {{value}} hold each other's weights: {says}",
        values=(),
        infer=exchanged_experts,
        fix="the order in which experts' tensors are stacked at load",
    )(partial(experts, parts=held))

STEPS = {"the next one's": 1, "the previous one's": -1}


def layers(loop: Loop, value: tuple[int, int] | str, side: str, part: str | None) -> Mutation:
    """Layers hold others' weights: two each other's, or each the next (previous) one's; all of it or one module."""
    held = {number: layer for number, layer in layers_of(loop, side) if not hasattr(layer, "fusion")}
    numbers = list(held)
    if isinstance(value, str):
        others = {number: numbers[(place + STEPS[value]) % len(held)] for place, number in enumerate(numbers)}
    else:
        if value[0] == value[1] or not set(value) <= held.keys():
            raise NotApplicable(f"layers {value} of {numbers}")
        others = {value[0]: value[1], value[1]: value[0]}
    modules = {number: getattr(layer, part) if part else layer for number, layer in held.items()}
    return together(taken for one, other in others.items() for taken in _taking(modules[one], modules[other]))


def _taking(one: Layer, other: Layer) -> Iterator[Mutation]:
    theirs = {name: tensor.data for name, tensor in other.named_parameters()}
    for name, tensor in one.named_parameters():
        if not torch.equal(tensor.data, theirs[name]):
            yield reweighted(tensor, theirs[name])


IN_ATTENTION = ("target.layers.*.q", "target.layers.*.k", "target.layers.*.v")
DRAFTER_ATTENTION = ("drafter.layers.*.attn_out",)
for side, end, part, stages in (
    ("target", "", None, ("target.layers.*.attn_in", *IN_ATTENTION)),
    ("target", "-attention", "self_attn", IN_ATTENTION),
    ("target", "-mlp", "mlp", ("target.layers.*.router_logits",)),
    ("drafter", "", None, DRAFTER_ATTENTION),
    ("drafter", "-attention", "self_attn", DRAFTER_ATTENTION),
    ("drafter", "-mlp", "mlp", ("drafter.layers.*.ffn_out",)),
):
    exchanged.both(
        f"load-layers-exchanged{end}",
        f"layers {{value}} hold each other's weights: {part or 'all'} (words: each holds those of another)",
        sides=(side,),
        stages=stages,
        values=(*STEPS, *combinations(range(MOST_LAYERS[side]), 2)),
        infer=LayerPair(stages[-1].replace("*", "{l}")),
        fix="the layer number in the names of the checkpoint's tensors",
    )(partial(layers, part=part))
