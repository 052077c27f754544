"""Other masks, on either side: rows that see too much or too little, windows, and what stands at a mask's edge."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from parity.references.hypotheses.catalogue import EVERY, ROWS, Family, Fit, Mutation
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.mutating import Layer, Layers, NotApplicable, chosen, layers_of, together
from parity.references.points import foreign

MASK_FIX = "the mask's bounds: key allowed when 0 <= q - k, and q - k < window in sliding layers"
TABLE = {"target": ("target.layers.*.q", "target.layers.*.k"), "drafter": ("drafter.layers.*.attn_out",)}
QUERIES = {"target": ("target.layers.*.q",), "drafter": ("drafter.layers.*.attn_out",)}
KEYS = {"target": ("target.layers.*.k",), "drafter": ("drafter.layers.*.attn_out",)}
MOVED = {
    "target": ("target.layers.*.q", "target.layers.*.k"),
    "drafter": ("drafter.layers.*.attn_out", "kv.drafter.*.k"),
}
OUT = ("{side}.layers.*.attn_out",)

Turned = tuple[Tensor, Tensor]
Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Numbered = list[tuple[int, Layer]]


def turning(loop: Loop, value: Layers, change: Callable[..., Turned], side: str = "target") -> Mutation:
    """`change(turn, q, k, cos, sin)` gives the rotated q and k of these layers."""
    attentions = [layer.self_attn for _, layer in layers_of(loop, side, value)]
    if side == "target":
        return together(_rotating(attention, change) for attention in attentions)
    return together(attention.turn.around(change) for attention in attentions)


def _rotating(attention: Layer, change: Callable[..., Turned]) -> Mutation:
    """Wrap the rotation of transformers' code while this attention runs, and only then."""
    from transformers.models.gpt_oss import modeling_gpt_oss

    def forward(inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with foreign(modeling_gpt_oss, "apply_rotary_pos_emb").around(change):
            return inner(*args, **kwargs)

    return foreign(attention, "forward").around(forward)


def attending(loop: Loop, value: Layers, change: Callable[..., Tensor], side: str = "target") -> Mutation:
    """`change(attend, q, k, v, mask)` gives [B, S, N, D] of q [B, N, S, D] over k and v [B, G, S, D]."""
    return _attending(layers_of(loop, side, value), change, side)


def _attending(layers: Numbered, change: Callable[..., Tensor], side: str) -> Mutation:
    def eager(
        inner: Callable[..., Any], module: Layer, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **kwargs: Any
    ) -> tuple[Tensor, None]:
        return change(lambda *inputs: inner(module, *inputs, **kwargs)[0], q, k, v, mask), None

    attentions = [layer.self_attn for _, layer in layers]
    if side == "target":
        return together(foreign(attention, "parity_attend").around(eager) for attention in attentions)
    return together(attention.attend.around(change) for attention in attentions)


def masking(loop: Loop, value: Layers, change: Callable[..., Tensor], side: str = "target") -> Mutation:
    """`change(seen, distance, verifying)` gives which keys a row sees.

    It is given what the row should see and how far behind it the keys are, [S, keys], and whether it is a verify pass.
    """
    return _masking(layers_of(loop, side, value), lambda *seen: change(*seen, bool(loop.state.length)), side)


def _masking(layers: Numbered, change: Callable[[Tensor, Tensor], Tensor], side: str) -> Mutation:
    def around(attend: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        seen = seen_keys(mask)
        rows, keys = seen.shape[-2:]
        seen = change(seen, torch.arange(keys - rows, keys)[:, None] - torch.arange(keys))
        return attend(q, k, v, _like(mask, seen, q))

    return _attending(layers, around, side)


def seen_keys(mask: Tensor) -> Tensor:
    """A mask as booleans: transformers adds its own to the scores."""
    return mask == 0 if mask.is_floating_point() else mask


def _like(mask: Tensor, seen: Tensor, q: Tensor) -> Tensor:
    """Booleans in the form of a mask."""
    return torch.where(seen, 0.0, torch.finfo(q.dtype).min).to(q.dtype) if mask.is_floating_point() else seen


masks = Family(masking, stages=OUT, layered=True, fix=MASK_FIX)
causal = masks.part(drafters={"target": EVERY, "drafter": ROWS})
causal.both("attn-causal-next-row", "a row sees the next row")(
    lambda seen, distance, verifying: seen | (distance == -1)
)
causal.both("attn-causal-missing", "a row sees all rows")(lambda seen, distance, verifying: seen | (distance < 0))
masks.both("attn-causal-not-itself", "a row does not see itself")(
    lambda seen, distance, verifying: seen & ((distance != 0) | (torch.arange(seen.shape[-1]) == 0))
)
masks.both("attn-mask-no-offset", "the causal mask does not count the cached rows", cost=2)(
    lambda seen, distance, verifying: seen & (distance >= distance[0, 0])
)
masks.both("attn-cache-ignored", "a row sees only its own pass", cost=2)(
    lambda seen, distance, verifying: seen & (torch.arange(seen.shape[-1]) >= distance[0, 0])
)
masks.both("attn-first-row-hidden", "the first row of the sequence is not seen")(
    lambda seen, distance, verifying: seen & ((torch.arange(seen.shape[-1]) > 0) | (distance == 0))
)
masks("verify-rows-bidirectional", "target: the rows of a verify pass see the drafts behind them", cost=2)(
    lambda seen, distance, verifying: seen | ((distance < 0) & verifying)
)
masks(
    "verify-rows-bidirectional-last-mask", "target: the rows of a verify pass all see what the last one sees", cost=2
)(lambda seen, distance, verifying: seen[..., -1:, :] if verifying else seen)

windows = Family(stages=OUT, fix=MASK_FIX)


def sliding(loop: Loop, value: Layers, slides: bool = True) -> list[int]:
    """The numbers of the target's layers with a window, or of those without one."""
    kinds = loop.target.config.layer_types or ()
    return chosen([layer for layer, kind in enumerate(kinds) if (kind == "sliding_attention") == slides], value)


def _sliding(loop: Loop, value: Layers, slides: bool = True) -> Numbered:
    return [(layer, loop.target.model.model.layers[layer]) for layer in sliding(loop, value, slides)]


def window_of(loop: Loop) -> int:
    """The target's.

    Raises:
        NotApplicable: it has none.
    """
    window = loop.target.config.sliding_window
    if not window:
        raise NotApplicable("this target has no sliding window")
    return int(window)


@windows(
    "attn-window-missing",
    "target: the sliding window is not applied",
    layered=True,
    seen=("TensorRT-Model-Connect #400",),
)
def window_missing(loop: Loop, value: Layers) -> Mutation:
    """Sliding layers see everything behind them."""
    window = window_of(loop)
    return _masking(_sliding(loop, value), lambda seen, distance: seen | (distance >= window), "target")


@windows.both("attn-window-added", "the target's window, where none belongs", layered=True)
def window_added(loop: Loop, value: Layers, side: str) -> Mutation:
    """The target's window on layers that have none."""
    window = window_of(loop)
    layers = _sliding(loop, value, slides=False) if side == "target" else layers_of(loop, side, value)
    return _masking(layers, lambda seen, distance: seen & (distance < window), side)


@windows(
    "attn-window-swapped", "target: odd layers slide and even ones do not", fix="layer_types of the target's config"
)
def _(loop: Loop, value: None) -> Mutation:
    return together((window_missing(loop, "all"), window_added(loop, "all", "target")))


def window_sized(loop: Loop, value: float, relative: bool = False) -> Mutation:
    """A window so many rows wider, or so many times as wide."""
    window = window_of(loop)
    wide = round(window * value) if relative else window + int(value)
    if wide < 1 or wide == window:
        raise NotApplicable(f"a window of {wide}")
    change = lambda seen, distance: (seen | (distance >= window)) & (distance < wide)  # noqa: E731
    return _masking(_sliding(loop, "all"), change, "target")


windows(
    "attn-window-size",
    "target: the window is {value:+d} rows wide of the configured one",
    values=(1, -1),
    fit=Fit(-1024, 4096, clean=0, whole=True),
)(window_sized)
windows(
    "attn-window-factor",
    "target: the window is {value:g} times the configured one",
    values=(0.5, 2.0, 4.0),
    fix="sliding_window of the target's config",
)(partial(window_sized, relative=True))

edges = Family(stages=OUT, layered=True, fix=MASK_FIX)


def strict(loop: Loop, value: Layers, side: str, first: str) -> Mutation:
    """A row does not see itself. `first` is what the sequence's first row, which then sees nothing, comes to.

    "zero": no weight on any row, nor anything but the sink. "mean": all rows of the pass alike.
    """
    if first == "zero" and side == "target":  # its sink takes all the weight
        return masking(loop, value, lambda seen, distance, verifying: seen & (distance != 0), side)

    def around(attend: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        own = torch.arange(k.shape[2] - q.shape[2], k.shape[2])[:, None] == torch.arange(k.shape[2])
        seen = seen_keys(mask) & ~own
        nothing = ~seen.any(-1, keepdim=True)  # [B, 1, S, 1]
        out = attend(q, k, v, _like(mask, seen | nothing, q))
        group = q.shape[1] // v.shape[1]
        edge = v.mean(2, keepdim=True).repeat_interleave(group, 1).transpose(1, 2) * (first == "mean")
        return torch.where(nothing.transpose(1, 2), edge, out)

    return attending(loop, value, around, side)


for end, first, says in (("", "zero", "is zero"), ("-mean", "mean", "is the mean of the pass' rows")):
    edges.both(
        f"attn-causal-strict{end}", f"a row does not see itself; the first one sees nothing, its attention {says}"
    )(partial(strict, first=first))


def _with_empty_slots(k: Tensor, v: Tensor, mask: Tensor, many: int, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`many` slots of zeros behind the keys and values; `seen` [S, many] says which rows see them."""
    k, v = (torch.cat((x, x.new_zeros(*x.shape[:2], many, x.shape[3])), 2) for x in (k, v))
    seen = _like(mask, seen.expand(*mask.shape[:-1], many), mask)
    return k, v, torch.cat((mask, seen), -1)


@edges.both("attn-causal-next-slot", "a row sees the next row, the last one the empty slot behind the end")
def _(loop: Loop, value: Layers, side: str) -> Mutation:
    def around(attend: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        rows, keys = q.shape[2], k.shape[2]
        behind = torch.arange(keys) == torch.arange(keys - rows, keys)[:, None] + 1
        mask = torch.where(behind, torch.zeros_like(mask), mask) if mask.is_floating_point() else mask | behind
        last = (torch.arange(rows) == rows - 1)[:, None]
        return attend(q, *_with_empty_slots(k, v, mask, 1, last))

    return attending(loop, value, around, side)


@edges.both(
    "attn-empty-slots",
    "all rows see empty slots behind the end: {value}",
    layered=False,
    values=("to the context's end", 1),
    fit=Fit(1, 131072, clean=None, log=True, whole=True),
    fix="the mask bounds keys by the length, not by the cache's size",
)
def _(loop: Loop, many: int | str, side: str) -> Mutation:
    """A static cache whose mask counts slots instead of rows; it may be as long as the context."""
    if not isinstance(many, str) and many < 1:
        raise NotApplicable("no slot")

    def around(attend: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        count = loop.max_positions - k.shape[2] if isinstance(many, str) else int(many)
        return over_empty_slots(attend, q, k, v, mask, max(count, 0))

    return attending(loop, "all", around, side)


FEW = 64
"""Empty slots up to so many are attended to one by one."""


def over_empty_slots(attend: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, many: int) -> Tensor:
    """Attention [B, S, N, D] over keys and values and so many slots of zeros behind them, which every row sees.

    Slots of zeros have one weight and add no value: from that of a single one follows what any number of them takes of
    a row. A context's length of them costs what one does.
    """
    everyone = torch.ones(q.shape[2], 1, dtype=torch.bool)
    if many <= FEW:
        return attend(q, *_with_empty_slots(k, v, mask, many, everyone))
    keys, values, seen = _with_empty_slots(k, v, mask, 1, everyone)
    marked = torch.zeros_like(values)
    marked[:, :, -1] = 1
    share = attend(q, keys, marked, seen)
    return attend(q, k, v, mask) / (1 + many * share / (1 - share))


def _normed(x: Tensor) -> Tensor:
    """An RMS norm of each head, without weight."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


normed_heads = Family(
    turning,
    stages=MOVED,
    layered=True,
    fix="these models have no norm of q and k",
    drafters={"target": EVERY, "drafter": ROWS},
)
normed_heads.both("attn-heads-normed", "q and k of each head are normed before the rotation")(
    lambda turn, q, k, cos, sin: turn(_normed(q), _normed(k), cos, sin)
)
normed_heads.both("attn-heads-normed-late", "q and k of each head are normed behind the rotation")(
    lambda turn, q, k, cos, sin: tuple(map(_normed, turn(q, k, cos, sin)))
)
