"""The rows that a pass leaves in a cache: keys and values as their projections give them, of what enters these.

Of a drafter no stage shows its queries, keys and values, nor its embeddings: its caches are where they show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity.references.hypotheses.mutating import layers_of, leaving
from parity.references.products import norms
from parity.references.products.attention.projections import norms_before, of_inputs, of_norm_weights, of_streams
from parity.references.products.kept_rows import KeptRows
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
from parity.references.products.rotated import Rotation, turned_by, turned_rows

NAMES = {"k": ("k_proj", "v_proj"), "v": ("v_proj", "k_proj")}


def of_cache(loop: Any, side: str, number: int, part: str, stack: ExitStack) -> Made:
    """Keys (`k`) or values (`v`) of a layer as they are kept.

    Raises:
        LookupError: the layer has no projections of its own.
    """
    layers = dict(layers_of(loop, side, "all"))
    layer = layers[number]
    module = getattr(layer.self_attn, NAMES[part][0])
    written, seen = KeptRows(), entered(module, stack)
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
        met = all(map(written.meets, streams))
        held = [written.of(each).double() for each in streams] if met else []
        beside = projections(loop, side, number, *NAMES[part])

        def others() -> Iterator[tuple[str, Changed]]:
            for says, other in _entering(layers, number, x, held, written.runs):
                yield says, given(other)

        (plain,) = linear(module, x, _halves(named, x), others, beside)
        found = [plain] if part == "v" else []
        if part == "k" and written.meets([cos for cos, _ in tables]):
            cos, sin = (written.of(each) for each in zip(*tables, strict=True))
            found = turned_rows(module, plain, cos, sin, written.spans(Rotation.of(tables)))
        if part == "v" and ids and written.meets(ids):
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
        others = norms.by_other_statistics(held[place], *norms.weight_and_eps(norm), runs)
        by_others = ((f"{name}: {says}", other) for says, other in others)
        for says, rows in chain(made, by_others):
            yield says, torch.cat([rows if at == place else one for at, one in enumerate(right)], dim=1)


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
