"""Rotary tables as a pass uses them, and queries and keys before they are rotated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parity.references.hypotheses.masks import turning
from parity.references.products.product import NARROW, Changed, Made, Product, as_it_is, entered, given, kept_in, linear

STEPS = (1, 2, 3, 4, 5, 6, 8, 16, 32, 64)
"""Positions by which a rotation may be off."""

Tables = list[tuple[Tensor, Tensor]]
"""cos and sin of each pass, float64 [rows, D / 2]."""


def turned_by(loop: Any, side: str, number: int, stack: ExitStack) -> Tables:
    """The tables by which a layer's queries and keys are rotated from now on, pass by pass."""
    held: Tables = []

    def change(turn: Callable[..., Any], q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **more: Any) -> Any:
        held.append((cos.detach().double().flatten(0, -2), sin.detach().double().flatten(0, -2)))
        return turn(q, k, cos, sin, **more)

    stack.enter_context(turning(loop, number, change, side))
    return held


@dataclass(frozen=True)
class Rotation:
    """A schedule as the tables of one pass show it.

    Attributes:
        first: position of the pass's first row.
        frequencies: radians a position of each pair, [D / 2].
        scale: that cos and sin are multiplied by.
    """

    first: int
    frequencies: Tensor
    scale: float

    @classmethod
    def of(cls, tables: Sequence[tuple[Tensor, Tensor]]) -> list[Rotation | None]:
        """Of each pass; None where no pass has two rows to tell the frequencies from."""
        long = next((one for one in tables if len(one[0]) > 1), None)
        if long is None:
            return [None] * len(tables)
        angles = torch.atan2(long[1], long[0])
        apart = angles[1] - angles[0]
        frequencies = torch.atan2(apart.sin(), apart.cos())
        scale = float((long[0][0] ** 2 + long[1][0] ** 2).mean().sqrt())
        slowest = int(frequencies.abs().argmin())  # turns less than once over all positions
        starts = (torch.atan2(sin[0], cos[0])[slowest] / frequencies[slowest] for cos, sin in tables)
        return [cls(round(float(start)), frequencies, scale) for start in starts]

    def from_row(self, row: int) -> Rotation:
        """That of a later row of the pass."""
        return replace(self, first=self.first + row)

    def angles(self, positions: Tensor) -> Tensor:
        """Of each position [n] and pair, [n, D / 2]."""
        return positions[:, None] * self.frequencies


def by_tables(x: Tensor, cos: Tensor, sin: Tensor, low: Callable[[Tensor], Tensor] = lambda x: x) -> Tensor:
    """Rotate x [..., D], whose halves are pairs, by cos and sin [..., D / 2]; `low` rounds each product."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((low(first * cos) - low(second * sin), low(second * cos) + low(first * sin)), dim=-1)


def turn(x: Tensor, angles: Tensor, scale: float = 1.0) -> Tensor:
    """Rotate x [..., n, D] by angles [n, D / 2] and multiply it by `scale`."""
    return by_tables(x, angles.cos() * scale, angles.sin() * scale)


Span = tuple[Rotation | None, int]
"""The rotation of a run of rows that stand behind one another, and how many they are."""


def before_rotation(loop: Any, number: int, module: Any, beside: Sequence[tuple[str, Any]], stack: ExitStack) -> Made:
    """Queries or keys of a target layer as their projection gives them."""
    seen, tables = entered(module, stack), turned_by(loop, "target", number, stack)

    def made() -> list[Product]:
        cos, sin = (torch.cat(side) for side in zip(*tables, strict=True))
        spans = [(of, len(one)) for of, (one, _) in zip(Rotation.of(tables), tables, strict=True)]
        (plain,) = linear(module, torch.cat(seen), beside=beside)
        return turned_rows(module, plain, cos, sin, spans)

    return made


def turned_rows(module: Any, plain: Product, cos: Tensor, sin: Tensor, spans: Sequence[Span]) -> list[Product]:
    """Rotated queries or keys, under other rotations too, and the same before they turn.

    Args:
        plain: their projection's product.
        cos, sin: by which each row turns, [R, D / 2].
        spans: of all rows in order.
    """
    back = partial(_led_back, cos, sin)
    weight: Any = plain.weight
    heads = torch.from_numpy(plain.x @ weight.T).unflatten(1, (-1, 2 * cos.shape[-1]))

    def others() -> Iterator[tuple[str, Changed]]:
        for says, change in rotations():
            yield says, given(_by_pass(heads, cos, sin, spans, change))
        for says, positions in other_positions():
            moved = partial(turned_to, other=positions)
            yield f"turned {says}", given(_by_pass(heads, cos, sin, spans, moved))
        if module.bias is not None:
            bias = module.bias.detach().double().view(heads.shape[1:])
            behind = _turned(heads - bias, cos, sin) + bias.flatten()
            yield "the bias added behind the rotation, not before", given(behind.numpy())
            yield "the bias added behind the rotation as well", given((behind + _turned(bias, cos, sin)).numpy())
        for name, dtype in NARROW.items():
            low = partial(kept_in, dtype=dtype)
            yield f"cos and sin in {name}", given(_turned(heads, low(cos), low(sin)).numpy())
            yield f"heads in {name} before they turn", given(_turned(low(heads), cos, sin).numpy())
            yield f"the products of the rotation in {name}", given(_turned(heads, cos, sin, low).numpy())

    rows = Product(_turned(heads, cos, sin).numpy(), None, (), others)
    return [rows, replace(plain, back=back, inside="before the rotation")]


def _turned(heads: Tensor, cos: Tensor, sin: Tensor, low: Callable[[Tensor], Tensor] = lambda x: x) -> Tensor:
    """Heads [R, N, D] rotated, as rows [R, N * D]."""
    return by_tables(heads, cos[:, None], sin[:, None], low).flatten(1)


def _by_pass(
    heads: Tensor,
    cos: Tensor,
    sin: Tensor,
    spans: Sequence[Span],
    change: Callable[[Rotation, Tensor, Tensor], Tensor],
) -> Any:
    """Rotated heads under another rotation, pass by pass, as rows [R, N * D]."""
    rotated = _turned(heads, cos, sin).unflatten(1, heads.shape[1:]).split([count for _, count in spans])
    rows = [
        x
        if of is None
        else change(of, x.transpose(0, 1), torch.arange(of.first, of.first + count).double()).transpose(0, 1)
        for x, (of, count) in zip(rotated, spans, strict=True)
    ]
    return torch.cat(rows).flatten(1).numpy()


def _led_back(cos: Tensor, sin: Tensor, rows: Any, numbers: Any) -> Any:
    """Rotated heads [r, N * D] of these rows before they were turned."""
    cos, sin = cos[numbers][:, None], sin[numbers][:, None]
    heads, size = torch.from_numpy(rows).unflatten(1, (-1, 2 * cos.shape[-1])), cos**2 + sin**2
    return by_tables(heads, cos / size, -sin / size).flatten(1).numpy()


def other_positions() -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Other positions [n] than a pass has, each with what it says."""
    for step in STEPS:
        many = "one position" if step == 1 else f"{step} positions"
        yield f"{many} on", partial(torch.add, other=step)
        yield f"{many} back", partial(torch.sub, other=step)
    yield "as if the pass began at 0", lambda at: at - at[0]
    yield "by the position of the pass's first row", lambda at: at[0].expand_as(at)
    yield "by the position of the pass's last row", lambda at: at[-1].expand_as(at)
    for size in (32, 64, 128, 256, 512, 1024):
        yield f"by the position modulo {size}", partial(torch.remainder, other=size)


def last_rows_alike() -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Positions [n] of which the last few are the first one's of these: masked rows that a kernel turns together."""
    for count in range(2, 9):
        yield f"its last {count} rows by the position of the first of these", partial(_last_alike, count=count)


def _last_alike(at: Tensor, count: int) -> Tensor:
    first = max(len(at) - count, 0)
    return torch.cat((at[:first], at[first].expand(len(at) - first)))


def rotations() -> Iterator[tuple[str, Callable[[Rotation, Tensor, Tensor], Tensor]]]:
    """Other rotations of queries or keys x [N, n, D] that stand at positions [n], each with what it says."""
    yield "not rotated", lambda of, x, at: turn(x, -of.angles(at), 1 / of.scale)
    yield "rotated twice", lambda of, x, at: turn(x, of.angles(at), of.scale)
    yield "rotated the other way", lambda of, x, at: turn(x, -2 * of.angles(at))
    yield "without the scale of cos and sin", lambda of, x, at: x / of.scale
    yield "rotated with neighbours for pairs", _interleaved
    for says, other in other_angles():
        yield f"rotated by {says}", partial(_by_angles, other=other)
    for share in (0.25, 0.5, 0.75):
        for whose, anew in (("the first pairs'", False), ("so many dimensions'", True)):
            says = f"rotated in the first {share:g} of their dimensions alone, by {whose} frequencies"
            yield says, partial(_partly, share=share, anew=anew)


def other_angles() -> Iterator[tuple[str, Callable[[Tensor, Tensor], Tensor]]]:
    """What positions [n] and frequencies [D / 2] may be multiplied to otherwise, [n, D / 2], each with what it says."""
    pi = math.pi
    yield "angles of at most pi: larger ones count as pi", lambda at, by: torch.outer(at, by).clamp(-pi, pi)
    yield "angles of at most 2 pi: larger ones count as 2 pi", lambda at, by: torch.outer(at, by).clamp(-2 * pi, 2 * pi)
    yield "angles modulo pi", lambda at, by: torch.outer(at, by).remainder(pi)
    for name, dtype in NARROW.items():
        low = partial(kept_in, dtype=dtype)
        yield f"angles in {name}", partial(_in_steps, angle=low)
        yield f"positions in {name}", partial(_in_steps, position=low)
        yield f"frequencies in {name}", partial(_in_steps, frequency=low)


def _in_steps(
    at: Tensor,
    by: Tensor,
    angle: Callable[[Tensor], Tensor] = as_it_is,
    position: Callable[[Tensor], Tensor] = as_it_is,
    frequency: Callable[[Tensor], Tensor] = as_it_is,
) -> Tensor:
    return angle(torch.outer(position(at), frequency(by)))


def _by_angles(of: Rotation, x: Tensor, positions: Tensor, other: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Rotated by other angles than the product of the position and the frequency."""
    return turn(x, other(positions, of.frequencies) - of.angles(positions))


def turned_to(of: Rotation, x: Tensor, positions: Tensor, other: Callable[[Tensor], Tensor]) -> Tensor:
    """Rotated as at other positions than its own."""
    return turn(x, of.angles(other(positions) - positions))


def _partly(of: Rotation, x: Tensor, positions: Tensor, share: float, anew: bool) -> Tensor:
    """Heads of which some dimensions are turned, pairs within these; `anew`: by frequencies spread over these alone."""
    plain = turn(x, -of.angles(positions), 1 / of.scale)
    count = int(len(of.frequencies) * share)
    frequencies = of.frequencies[:count]
    if anew:
        frequencies = frequencies.sign() * frequencies.abs() ** (1 / share)
    first, rest = plain.split([2 * count, plain.shape[-1] - 2 * count], dim=-1)
    return torch.cat((turn(first, positions[:, None] * frequencies, of.scale), rest), dim=-1)


def _interleaved(of: Rotation, x: Tensor, positions: Tensor) -> Tensor:
    plain = turn(x, -of.angles(positions), 1 / of.scale)
    pairs = torch.cat((plain[..., 0::2], plain[..., 1::2]), dim=-1)
    first, second = turn(pairs, of.angles(positions), of.scale).chunk(2, dim=-1)
    both: Tensor = torch.stack((first, second), dim=-1).flatten(-2)
    return both
