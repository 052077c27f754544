"""What has to enter a whole layer for it to give what it gave: for a port that hides the layer before.

The second half is solved for row by row. Attention mixes rows, so that the stream that enters is solved for over all
rows of a pass at once: x + attention(x) = what enters the second half (`fixed_points`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from parity.references.products import norms
from parity.references.products.attention.operands import Pass
from parity.references.products.attention.projections import Projected
from parity.references.products.fixed_points import entering, without_slopes
from parity.references.products.halves import Second, SecondHalf
from parity.references.products.rotated import by_tables
from parity.references.products.whole_layers import LayerPass, LayerPasses, layer_passes

Caches = Sequence[tuple[Any, Any]]
"""Keys and values [n, G, D] that a layer wrote for the first n rows of each pass."""


@dataclass(frozen=True)
class LayerBack:
    """The way back through one layer, over all passes that it ran."""

    of: LayerPasses
    second: Second

    @property
    def starts(self) -> list[int]:
        """The slot of each pass's first row."""
        return [one.held.cached for one in self.of.passes]

    def entering(self, rows: Any, caches: Caches = (), apart: float = 0.0, carried: bool = False) -> Any:
        """What must have entered for rows to leave; NaN where it is not found.

        Experts are chosen by what enters: there may be several streams that end alike, and a wrong one spoils the rows
        that attend to it. The keys and values that the layer wrote tell which it was.

        Args:
            rows: float64 [R, H], of all passes in order.
            caches: what the layer wrote to its caches, of each pass; nothing where that is not known.
            apart: how far, relative, keys and values of a row may be from these: beyond it the row is not found.
            carried: whether each pass reads what earlier ones wrote, and not the golden's.
        """
        kept: Sequence[tuple[Any, Any] | None] = caches or [None] * len(self.of.passes)
        found: list[Tensor] = []
        written: list[Tensor] = []
        for (one, left), held in zip(self._by_pass(rows), kept, strict=True):
            own = [] if held is None else [torch.from_numpy(side).double().transpose(0, 1) for side in held]
            one = _behind(one, written) if carried and written else one
            found.append(self._entering(one, left, own, apart))
            new = own or self._written(one, found[-1].nan_to_num())
            before = (one.held.k, one.held.v)
            written = [
                torch.cat((side[:, : one.held.cached], rows), dim=1) for side, rows in zip(before, new, strict=True)
            ]
        return torch.cat(found).numpy()

    def cached(self, stream: Any) -> Caches:
        """The keys and values [S, G, D] of each pass for a stream [R, H] that enters."""
        written = (self._written(one, x) for one, x in self._by_pass(stream))
        return [(k.transpose(0, 1).numpy(), v.transpose(0, 1).numpy()) for k, v in written]

    def _by_pass(self, rows: Any) -> Iterator[tuple[LayerPass, Tensor]]:
        parts = torch.from_numpy(rows).double().split([len(one.stream) for one in self.of.passes])
        return zip(self.of.passes, parts, strict=True)

    def _written(self, one: LayerPass, x: Tensor) -> list[Tensor]:
        return [one.maker.heads(side, self.of.normed(x), one.held.k.shape[-1]) for side in "kv"]

    def _entering(self, one: LayerPass, left: Tensor, own: Sequence[Tensor], apart: float) -> Tensor:
        def over_own(made: Pass, maker: Projected) -> Pass:
            return _over(made, own, made.cached)

        def attended(x: Tensor) -> Tensor:
            return self.of.attended(one, x, over_own)

        near = self._near(one, own) if own else one.stream
        behind = entering(self.second, left, near + attended(near))
        known = behind.isfinite().all(dim=1)[:, None]
        together = torch.where(known, behind, left).flatten()[None]
        whole = without_slopes(lambda x: x + attended(x.view_as(near)).flatten(), together, near.flatten()[None])
        found = torch.where(known, whole.view_as(near), math.nan)
        if own:
            found[: own[0].shape[1]][self._apart(one, found, own) > apart] = math.nan
        return found

    def _apart(self, one: LayerPass, stream: Tensor, own: Sequence[Tensor]) -> Tensor:
        """How far keys and values of a stream's first rows [n] are from these, relative: a stream that ends alike by
        chance has others."""
        pairs = [(mine, made[:, : mine.shape[1]]) for mine, made in zip(own, self._written(one, stream), strict=True)]
        missing = torch.stack([(mine - made).square().sum(dim=(0, 2)) for mine, made in pairs]).sum(dim=0)
        size = torch.stack([mine.square().sum(dim=(0, 2)) for mine, _ in pairs]).sum(dim=0)
        return (missing / size).sqrt()

    def _near(self, one: LayerPass, own: Sequence[Tensor]) -> Tensor:
        """The stream that entered [S, H], moved to where it gives these keys and values of its first rows.

        They may be fewer numbers than a row has, and do not tell its size: it is a place to begin at.
        """
        count = own[0].shape[1]
        cos, sin = one.maker.cos[:count], one.maker.sin[:count]
        apart = [mine - made[:, :count] for mine, made in zip(own, self._written(one, one.stream), strict=True)]
        apart[0] = by_tables(apart[0], cos / (cos**2 + sin**2), -sin / (cos**2 + sin**2))
        weights = torch.cat([one.maker.weights[side][0] for side in "kv"])
        rows = torch.cat([side.transpose(0, 1).flatten(1) for side in apart], dim=1)
        weight, eps = norms.weight_and_eps(self.of.layer.input_layernorm)
        moved = torch.linalg.lstsq(weights * weight, rows.T, driver="gelsd").solution.T
        near = one.stream.clone()
        near[:count] += moved * (near[:count].square().mean(dim=1, keepdim=True) + eps).sqrt()
        return near


def _over(made: Pass, rows: Sequence[Tensor], first: int) -> Pass:
    """A pass over other keys and values [G, n, D] from a slot on; over its own where there are none."""
    sides = {}
    for name, other in zip("kv", rows, strict=False):
        held = getattr(made, name).clone()
        held[:, first : first + other.shape[1]] = other
        sides[name] = held
    return replace(made, **sides)


def _behind(one: LayerPass, written: Sequence[Tensor]) -> LayerPass:
    """A pass whose earlier rows are those that were written."""
    return replace(one, held=_over(one.held, [side[:, : one.held.cached] for side in written], 0))


@contextmanager
def entering_layer(loop: Any, stage: str) -> Iterator[Callable[[], LayerBack]]:
    """While it is open, a run of the loop is watched for what enters the layer that gives a stage; what is given makes
    the way back once the run ended.

    Raises:
        LookupError: as `layer_passes`.
    """
    with ExitStack() as stack:
        made = layer_passes(loop, stage, stack)

        def way() -> LayerBack:
            passes = made()
            return LayerBack(passes, SecondHalf.of(passes.layer, passes.side).under())

        yield way
