"""The rows that a pass leaves in a cache: keys and values as their projections give them, of what enters these.

Of a drafter no stage shows its queries, keys and values, nor its embeddings: its caches are where they show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity.references.hypotheses.mutating import layers_of, leaving
from parity.references.products import norms
from parity.references.products.attention.projections import norms_before, of_inputs, of_norm_weights, of_streams
from parity.references.products.norm_changes import normed_by
from parity.references.products.product import (
    LARGE,
    Changed,
    Made,
    Parts,
    Product,
    entered,
    given,
    in_block_formats,
    in_formats,
    linear,
    projections,
)
from parity.references.products.rotated import Rotation, Span, turned_by, turned_rows

SAME = 1e-3
"""How far a row in a cache may be from the one that a projection gave, of its size: a pass of other rows adds up in
another order."""

NAMES = {"k": ("k_proj", "v_proj"), "v": ("v_proj", "k_proj")}


@dataclass
class _Written:
    """Which rows of a layer's passes its cache keeps, told by their values.

    Attributes:
        values: what the projection of values gave, pass by pass, [rows, G * D].
        rows: of each cached row that is new, (pass, row).
        places: (round, position) of each.
    """

    values: list[Tensor] = field(default_factory=list)
    rows: list[tuple[int, int]] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    before: int = 0
    read: int = 0
    round: int = 0

    def see(self, out: Tensor) -> None:
        """What the projection of values gives."""
        self.values.append(out.detach().flatten(0, -2))

    def keep(self, held: Tensor) -> None:
        """The cache's values [S, G, D] at the end of a round.

        Raises:
            LookupError: a row that no pass of the round gave.
        """
        for row in held.detach().flatten(1)[self.before :]:
            self.rows.append(self._next_row(row) or self._any_row(row))
        self.places += [(self.round, position) for position in range(self.before, len(held))]
        self.before, self.read, self.round = len(held), len(self.values), self.round + 1

    def _next_row(self, row: Tensor) -> tuple[int, int] | None:
        """The row behind the last one that was kept, where it is this one: rows of a pass mostly are kept in order."""
        place, number = self.rows[-1] if self.rows else (0, -1)
        if place < self.read or number + 1 >= len(self.values[place]):
            return None
        apart = float((self.values[place][number + 1] - row).norm())
        return (place, number + 1) if apart <= SAME * float(row.norm()) else None

    def _any_row(self, row: Tensor) -> tuple[int, int]:
        """The row of the round's passes that is nearest to this one, the last of several.

        Raises:
            LookupError: none is as near as a row that is the same.
        """
        apart = [(one - row).norm(dim=1) for one in self.values[self.read :]]
        if not apart or min(float(each.min()) for each in apart) > SAME * float(row.norm()):
            raise LookupError("a cached row is none that was made")
        at = max(range(len(apart)), key=lambda place: (-float(apart[place].min()), place))
        return self.read + at, int(apart[at].argmin())

    def meets(self, passes: Sequence[Tensor]) -> bool:
        """Whether passes have the rows that the projection had; context may enter it behind no norm of its own."""
        return [*map(len, passes)] == [*map(len, self.values)]

    def of(self, passes: Sequence[Tensor]) -> Tensor:
        """The rows kept of what passes hold [rows, ...]."""
        return torch.stack([passes[place][row] for place, row in self.rows])

    @property
    def runs(self) -> list[int]:
        """How many of these each pass gave, pass by pass."""
        return [len([*run]) for _, run in groupby(self.rows, key=itemgetter(0))]

    def spans(self, rotations: Sequence[Rotation | None]) -> list[Span]:
        """Runs of these that stand behind one another in a pass, with the rotation of the first."""
        runs: list[list[tuple[int, int]]] = []
        for place, row in self.rows:
            if not runs or runs[-1][-1] != (place, row - 1):
                runs.append([])
            runs[-1].append((place, row))
        found = []
        for run in runs:
            of, (place, row) = rotations[run[0][0]], run[0]
            found.append((of and of.from_row(row), len(run)))
        return found


def of_cache(loop: Any, side: str, number: int, part: str, stack: ExitStack) -> Made:
    """Keys (`k`) or values (`v`) of a layer as they are kept.

    Raises:
        LookupError: the layer has no projections of its own.
    """
    layers = dict(layers_of(loop, side, "all"))
    layer = layers[number]
    module = getattr(layer.self_attn, NAMES[part][0])
    written, seen = _Written(), entered(module, stack)
    tables = turned_by(loop, side, number, stack)
    named = norms_before(layer)
    streams = [entered(norm, stack) for norm in named.values()]
    ids = entered(loop.drafter.embed_tokens, stack) if len(named) > 1 else []
    stack.enter_context(leaving(layer.self_attn.v_proj, written.see))

    def cached(inner: Callable[..., Any], name: str, k: Tensor, v: Tensor) -> Any:
        if name == f"kv.{side}.{number}":
            written.keep(v)
        return inner(name, k, v)

    stack.enter_context(loop.cached.around(cached))

    def made() -> list[Product]:
        x = written.of(seen)
        held = [written.of(each).double() for each in streams if written.meets(each)]
        beside = projections(loop, side, number, *NAMES[part])

        def others() -> Iterator[tuple[str, Changed]]:
            for says, other in _entering(layers, number, x, held, written.runs):
                yield says, given(other)

        (plain,) = linear(module, x, _halves(named, x), others, beside)
        found = [plain] if part == "v" else []
        if part == "k" and written.meets([cos for cos, _ in tables]):
            cos, sin = (written.of(each) for each in zip(*tables, strict=True))
            found = turned_rows(module, plain, cos, sin, written.spans(Rotation.of(tables)))
        if part == "v" and ids:
            found += _embedded(loop.drafter.embed_tokens, layer, plain, written.of(ids))
        return [replace(one, places=np.array(written.places)) for one in found]

    return made


def _halves(named: dict[str, Any], x: Tensor) -> Parts:
    """The columns of what each norm gives, of a layer that takes two."""
    if len(named) < 2:
        return ()
    size = x.shape[1] // len(named)
    names = [name.removesuffix(" norm").removesuffix("'s") for name in named]
    return [(f"what {name} gives", place * size, (place + 1) * size) for place, name in enumerate(names)]


def _entering(
    layers: dict[int, Any], number: int, x: Tensor, held: Sequence[Tensor], runs: Sequence[int]
) -> Iterator[tuple[str, Tensor]]:
    """Other rows [R, D] that enter, of other norms of the streams [R, H], or of other streams; `runs` are the rows that
    each pass left."""
    yield from ((says, change(x)) for says, change in of_inputs())
    if not held:
        return
    for says, factors in of_norm_weights(layers, number):
        yield says, x * factors
    for says, normed in of_streams(layers[number]):
        yield says, normed(held)
    before = norms_before(layers[number])
    right = [norms.of_module(norm)(one) for norm, one in zip(before.values(), held, strict=True)]
    for place, (name, norm) in enumerate(before.items()):
        changed = norms.of_module(norm)
        made = ((f"{name} of {says}", changed(other)) for says, other in _streams(held[place]))
        by_others = ((f"{name}: {says}", other) for says, other in _of_other_rows(norm, held[place], runs))
        for says, rows in (*made, *by_others):
            yield says, torch.cat([rows if at == place else one for at, one in enumerate(right)], dim=1)


def _of_other_rows(norm: Any, x: Tensor, runs: Sequence[int]) -> Iterator[tuple[str, Tensor]]:
    """What a norm gives of rows [R, H] by the statistic of others; `runs` are the rows that each pass left."""
    weight, eps = norms.weight_and_eps(norm)
    inverse = normed_by(x, eps)
    for whose, rows in norms.other_rows(runs):
        yield f"the root mean square of {whose}", x * inverse[rows] * weight
    for whose, together in norms.together(runs):
        yield f"one mean square over {whose}", x * norms.shared(inverse, eps, together) * weight


def _streams(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Other rows than those of a stream [R, H]."""
    yield "the row before", x.roll(1, 0)
    yield "the row behind", x.roll(-1, 0)
    for name, low in (*in_formats(), *in_block_formats()):
        yield f"rows in {name}", low(x)


def _embedded(table: Any, layer: Any, plain: Product, ids: Tensor) -> list[Product]:
    """The drafter's embeddings behind their norm, led back from the rows that values are made of.

    Nothing where there are more of their numbers than of a row's, or so many that they are not held beside each other.
    """
    held, size = table.weight.detach(), table.weight.shape[1]
    weight: Any = plain.weight
    if held.numel() > LARGE or weight.shape[0] < size:
        return []
    normed: Any = norms.of_module(layer.input_layernorm)(held.double()).float().numpy()
    own, rest = torch.from_numpy(weight).double().split([size, weight.shape[1] - size], dim=1)
    solved, behind = torch.linalg.pinv(own), torch.from_numpy(plain.x)[:, size:]

    def back(rows: Any, numbers: Any) -> Any:
        made = torch.from_numpy(rows) - behind[numbers] @ rest.T
        return (made @ solved.T).numpy()

    x, unit = plain.x[:, :size], torch.eye(size).numpy()
    rows = ids.numpy(), normed
    return [Product(x, unit, (), back=back, inside="the embedding behind its norm", table=rows)]
