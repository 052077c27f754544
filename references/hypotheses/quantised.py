"""Quantised caches: other scales, formats and roundings than the golden's, and rows that never went through them.

A key or a value x is due to be read as Q(x / s) s. What stands in the place of each s, and of Q, is what can be wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from parity.references.hypotheses.catalogue import FACTOR, ROWS, Family, Mutation
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.mutating import NotApplicable, together

if TYPE_CHECKING:
    from parity.references.kv_cache import Quantiser

STAGES = {
    "target": ("target.layers.*.attn_out", "kv.target.*"),
    "drafter": ("drafter.layers.*.attn_out", "kv.drafter.*"),
}
SCALE_FIX = "a cache divides by the scale of its own layer and part when it is written, and multiplies by it once"
FORMAT_FIX = (
    "the format of the cache: its numbers, its rounding to the nearest even one, and what is beyond the largest"
)
DRAFTERS = {"target": (*ROWS, "n-gram", "dflash"), "drafter": ROWS}

PARTS = (
    ("kv", "", "keys and values have"),
    ("k", "-k", "keys have"),
    ("v", "-v", "values have"),
)
"""Of a cache, the end of an id for it, and how a sentence about it begins."""

ENDS = {"both": "", "read": " when they are read", "written": " when they are written"}

Scale = Callable[[int, str], Tensor]
"""A layer's, of keys or values."""

scales = Family(stages=STAGES, fix=SCALE_FIX, by_side=True, drafters=DRAFTERS)
formats = Family(stages=STAGES, fix=FORMAT_FIX, by_side=True, drafters=DRAFTERS)


def quantiser_of(loop: Loop, side: str) -> Quantiser:
    """What a side's caches make of keys and values.

    Raises:
        NotApplicable: they keep the dtype of the pass.
    """
    made = loop.target.quantiser if side == "target" else loop.quantiser
    if made is None:
        raise NotApplicable(f"the {side}'s caches keep the dtype of the pass")
    return made


def scaled(
    loop: Loop, value: Any, side: str, change: Callable[[Any, Scale, int, str], Tensor], parts: str, when: str
) -> Mutation:
    """Other scales of these parts: `change(value, scale, layer, part)` where they are read, written, or both."""
    made = quantiser_of(loop, side)
    ends = [made.write_scale] * (when != "read") + [made.read_scale] * (when != "written")
    places = [(layer, part) for part in parts for layer in range(len(made.scales[part]))]
    if all(change(value, end, *place) == end(*place) for end in ends for place in places):
        raise NotApplicable("the scales stay what they are")

    def scale(inner: Scale, layer: int, part: str) -> Tensor:
        return change(value, inner, layer, part) if part in parts else inner(layer, part)

    return together(end.around(scale) for end in ends)


def _of_the_other(value: None, scale: Scale, layer: int, part: str) -> Tensor:
    return scale(layer, "v" if part == "k" else "k")


ALONE: dict[str, Callable[[Tensor], Tensor]] = {
    "no scale": lambda scale: scale * 0 + 1,
    "the square of their scale": lambda scale: scale * scale,
    "the inverse of their scale": lambda scale: 1 / scale,
    "their scale in bfloat16": lambda scale: scale.bfloat16().float(),
    "the next power of two above their scale": lambda scale: torch.exp2(torch.ceil(torch.log2(scale))),
}
"""What may stand for a scale, alone."""

LAYERS: dict[str, Callable[[int, int], int]] = {
    "the scale of the first layer": lambda layer, last: 0,
    "the scale of the layer before": lambda layer, last: max(layer - 1, 0),
    "the scale of the layer behind": lambda layer, last: min(layer + 1, last),
    "the scale of the last layer": lambda layer, last: last,
}


def _alone(value: str, scale: Scale, layer: int, part: str) -> Tensor:
    return ALONE[value](scale(layer, part))


def _times(value: float, scale: Scale, layer: int, part: str) -> Tensor:
    return scale(layer, part) * value


def _of_layer(loop: Loop, value: str, side: str, parts: str, when: str) -> Mutation:
    last = len(quantiser_of(loop, side).scales["k"]) - 1

    def change(value: str, scale: Scale, layer: int, part: str) -> Tensor:
        return scale(LAYERS[value](layer, last), part)

    return scaled(loop, value, side, change, parts, when)


for when, behind in ENDS.items():
    name = "kv-scale" if when == "both" else f"kv-scale-{when}"
    for parts, end, having in PARTS:
        others = {"kv": "each other's scales", "k": "the scale of the values", "v": "the scale of the keys"}
        of_part = partial(scaled, parts=parts, when=when)
        scales.both(f"{name}-other{end}", f"{having} {others[parts]}{behind}")(partial(of_part, change=_of_the_other))
        scales.both(f"{name}-instead{end}", f"{having} {{value}}{behind}", values=tuple(ALONE))(
            partial(of_part, change=_alone)
        )
        scales.both(f"{name}-layer{end}", f"{having} {{value}}{behind}", values=tuple(LAYERS))(
            partial(_of_layer, parts=parts, when=when)
        )
        scales.both(
            f"{name}-factor{end}",
            f"{having} {{value}} times their scale{behind}",
            values=(),
            fit=FACTOR,
        )(partial(of_part, change=_times))


def _through(loop: Loop, value: Any, side: str, change: Callable[..., Tensor], parts: str) -> Mutation:
    """`change(value, inner, rows, quantiser)` in the place of what the caches make of rows of these parts."""
    made = quantiser_of(loop, side)

    def nearest(inner: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return change(value, inner, x, made)

    def marked(inner: Scale, layer: int, part: str) -> Tensor:
        now[:] = [part]
        return inner(layer, part)

    def only(inner: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return nearest(inner, x) if now[0] in parts else inner(x)

    now = [""]
    return together((made.write_scale.around(marked), made.nearest.around(only)))


def _as_it_is(value: None, inner: Callable[[Tensor], Tensor], x: Tensor, made: Quantiser) -> Tensor:
    return x


def _toward_zero(x: Tensor, inner: Callable[[Tensor], Tensor], made: Quantiser) -> Tensor:
    """The next number of the format that is no larger in size: the nearest one, or the one below it."""
    kept = inner(x)
    code = kept.to(made.dtype).view(torch.uint8)  # a sign, and behind it numbers in their order
    below = (code - ((code & 127) > 0).to(torch.uint8)).view(made.dtype).float()
    return torch.where(kept.abs() > x.abs(), below, kept)


def _up_to(x: Tensor, most: float) -> Tensor:
    return x.clamp(-most, most)


ROUNDED: dict[str, Callable[[Tensor, Callable[[Tensor], Tensor], Any], Tensor]] = {
    "cut off towards zero instead of rounded": _toward_zero,
    "zero where they are subnormal": lambda x, inner, made: torch.where(
        inner(x).abs() < torch.finfo(made.dtype).smallest_normal, 0.0, inner(x)
    ),
    "infinite beyond the largest number": lambda x, inner, made: torch.where(
        x.abs() > torch.finfo(made.dtype).max, torch.copysign(torch.full_like(x, float("inf")), x), inner(x)
    ),
    "at most 240 times their scale": lambda x, inner, made: inner(_up_to(x, 240.0)),
    "at most 448 times their scale": lambda x, inner, made: inner(_up_to(x, 448.0)),
    "kept in fp8_e4m3": lambda x, inner, made: _of(x, torch.float8_e4m3fn),
    "kept in fp8_e5m2": lambda x, inner, made: _of(x, torch.float8_e5m2),
    "kept in bfloat16, over their scale": lambda x, inner, made: x.bfloat16().float(),
    "whole numbers of int8, over their scale": lambda x, inner, made: x.round().clamp(-127, 127),
}
"""What may stand for the nearest number of the format."""


def _of(x: Tensor, dtype: torch.dtype) -> Tensor:
    return _up_to(x, torch.finfo(dtype).max).to(dtype).float()


def _rounded(value: str, inner: Callable[[Tensor], Tensor], x: Tensor, made: Quantiser) -> Tensor:
    return ROUNDED[value](x, inner, made)


for parts, end, having in PARTS:
    are = having.removesuffix("have") + "are"
    formats.both(f"kv-unquantised{end}", f"{are} kept in the dtype of the pass, not in the format of the golden")(
        partial(_through, change=_as_it_is, parts=parts)
    )
    formats.both(f"kv-rounded{end}", f"{are} {{value}}", values=tuple(ROUNDED))(
        partial(_through, change=_rounded, parts=parts)
    )

PASSES: dict[str, Callable[[int], bool]] = {
    "every pass": lambda before: True,
    "the prefill": lambda before: not before,
    "the passes of rounds": bool,
}


@formats.both(
    "kv-own-rows",
    "attention reads the rows of the same pass as they were made, not as the cache keeps them, in {value}",
    values=tuple(PASSES),
    stages={side: stages[:1] for side, stages in STAGES.items()},
    fix="attention reads the cache for every row, those of its own pass included",
)
def _(loop: Loop, value: str, side: str) -> Mutation:
    def attended(inner: Callable[..., Tensor], part: str, rows: Tensor, own: Tensor, layer: int) -> Tensor:
        before = rows.shape[-2] - own.shape[-2]
        if not PASSES[value](before):
            return inner(part, rows, own, layer)
        return torch.cat((rows[..., :before, :], own), dim=-2)

    return quantiser_of(loop, side).attended.around(attended)
