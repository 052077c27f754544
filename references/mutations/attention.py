"""Other attention, on either side: rotation of q and k, masks, scale, sinks, head order, biases, shards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from transformers.models.gpt_oss import modeling_gpt_oss

from parity.references import hf_target
from parity.references.mutations import NotApplicable, changed, chosen, layers_of, reweighted, together, wrapped


def _during(module: Any, owner: Any, name: str, around: Callable) -> AbstractContextManager:
    """Wrap a function of transformers' modelling code while this module runs, and only then."""

    def forward(inner, *args, **kwargs):
        with wrapped(owner, name, around):
            return inner(*args, **kwargs)

    return wrapped(module, "forward", forward)


def turning(loop: Any, value: Any, side: str, around: Callable) -> AbstractContextManager:
    """`around(turn, q, k, cos, sin)` gives the rotated q and k of these layers."""
    attentions = [layer.self_attn for _, layer in layers_of(loop, side, value)]
    if side == "target":
        return together(_during(one, modeling_gpt_oss, "apply_rotary_pos_emb", around) for one in attentions)
    return together(wrapped(one, "turn", around) for one in attentions)


def attending(loop: Any, layers: list, side: str, around: Callable) -> AbstractContextManager:
    """`around(attend, q, k, v, mask)` gives [B, S, N, D] of q [B, N, S, D] over k and v [B, G, S, D]."""

    def eager(inner, module, q, k, v, mask, **kwargs):
        return around(lambda *inputs: inner(module, *inputs, **kwargs)[0], q, k, v, mask), None

    attentions = [layer.self_attn for _, layer in layers]
    if side == "target":
        return together(_during(one, hf_target, "eager_attention_forward", eager) for one in attentions)
    return together(wrapped(one, "attend", around) for one in attentions)


def masking(loop: Any, layers: list, side: str, change: Callable) -> AbstractContextManager:
    """`change(seen, distance)` gives which keys a row sees, of what it should see and how far behind it they are."""

    def around(attend, q, k, v, mask):
        seen = mask == 0 if mask.is_floating_point() else mask
        rows, keys = seen.shape[-2:]
        seen = change(seen, torch.arange(keys - rows, keys)[:, None] - torch.arange(keys))
        hidden = torch.finfo(q.dtype).min
        return attend(q, k, v, torch.where(seen, 0.0, hidden).to(q.dtype) if mask.is_floating_point() else seen)

    return attending(loop, layers, side, around)


def sees(loop: Any, value: Any, side: str, what: str) -> AbstractContextManager:
    """Causal masks gone wrong."""
    change = {
        "the next row": lambda seen, distance: seen | (distance == -1),
        "all rows": lambda seen, distance: seen | (distance < 0),
        "not itself": lambda seen, distance: seen & ((distance != 0) | (torch.arange(seen.shape[-1]) == 0)),
        "no cache offset": lambda seen, distance: seen & (distance >= distance[0, 0]),
        "only its own pass": lambda seen, distance: seen & (torch.arange(seen.shape[-1]) >= distance[0, 0]),
        "what the last one of a verify pass does": lambda seen, distance: seen[..., -1:, :] if loop.length else seen,
        "the drafts behind it": lambda seen, distance: seen | ((distance < 0) & bool(loop.length)),
        "not the first row": lambda seen, distance: seen & ((torch.arange(seen.shape[-1]) > 0) | (distance == 0)),
    }[what]
    return masking(loop, layers_of(loop, side, value), side, change)


def _sliding(loop: Any, sliding: bool, value: Any) -> list:
    """The target's layers with a window, or those without one."""
    kinds = loop.target.config.layer_types
    wanted = chosen([l for l, kind in enumerate(kinds) if (kind == "sliding_attention") == sliding], value)
    return [(l, loop.target.model.model.layers[l]) for l in wanted]


def _window(loop: Any) -> int:
    window = loop.target.config.sliding_window
    if not window:
        raise NotApplicable("this target has no sliding window")
    return window


def window_missing(loop: Any, value: Any) -> AbstractContextManager:
    """Sliding layers see everything behind them."""
    window = _window(loop)
    return masking(loop, _sliding(loop, True, value), "target", lambda seen, distance: seen | (distance >= window))


def window_added(loop: Any, value: Any, side: str = "target") -> AbstractContextManager:
    """The target's window on layers that have none."""
    window = _window(loop)
    layers = _sliding(loop, False, value) if side == "target" else layers_of(loop, side, value)
    return masking(loop, layers, side, lambda seen, distance: seen & (distance < window))


def window_swapped(loop: Any, value: None) -> AbstractContextManager:
    """Odd layers slide and even ones do not."""
    return together((window_missing(loop, "all"), window_added(loop, "all")))


def window_sized(loop: Any, value: float, relative: bool = False) -> AbstractContextManager:
    """A window so many rows wider, or so many times as wide."""
    window = _window(loop)
    wide = round(window * value) if relative else window + int(value)
    if wide < 1 or wide == window:
        raise NotApplicable(f"a window of {wide}")
    change = lambda seen, distance: (seen | (distance >= window)) & (distance < wide)  # noqa: E731
    return masking(loop, _sliding(loop, True, "all"), "target", change)


def scaled(loop: Any, value: float | str, side: str) -> AbstractContextManager:
    """Scores times a factor, or scaled by a wrong dimension."""
    config = loop.target.config if side == "target" else loop.drafter.config
    heads = config.num_attention_heads if side == "target" else config.num_heads
    root = config.head_dim**0.5
    known = {
        "not scaled": root,
        "scaled twice": 1 / root,
        "scaled by 1/sqrt(H)": root / config.hidden_size**0.5,
        "scaled by 1/sqrt(N*D)": 1 / heads**0.5,
        "scaled by 1/D": 1 / root,
    }
    factor = known.get(value, value)
    around = lambda attend, q, k, v, mask: attend(q * factor, k, v, mask)  # noqa: E731
    return attending(loop, layers_of(loop, side), side, around)


def regrouped(loop: Any, value: Any, side: str, how: str) -> AbstractContextManager:
    """Query heads paired with other kv heads, or the heads' outputs in another order before o_proj."""

    def around(attend, q, k, v, mask):
        tiled = _tiled(q.shape[1], k.shape[1])
        if how == "next":
            return attend(q, k.roll(-1, 1), v.roll(-1, 1), mask)
        out = attend(q, k, v, mask)
        orders = {"reversed": lambda: out.flip(2), "transposed": lambda: out.transpose(2, 3).reshape(out.shape)}
        return out[:, :, tiled] if how == "output tiled" else orders[how]()

    return attending(loop, layers_of(loop, side, value), side, around)


def _tiled(N: int, G: int) -> torch.Tensor:
    """The heads in the order in which n mod G counts up: place p of N has head (p mod N/G) * G + p div N/G."""
    return torch.arange(N).view(N // G, G).T.flatten()


def tiled(loop: Any, value: Any, side: str, stays: str) -> AbstractContextManager:
    """Query head n reads kv head n mod G.

    `stays` names what goes by the place in that order instead of following the head: nothing, sinks, output or both.
    """
    layers = layers_of(loop, side, value)

    def around(attend, q, k, v, mask):
        order = _tiled(q.shape[1], k.shape[1])
        out = attend(q[:, order], k, v, mask)
        return out if stays in ("output", "both") else out[:, :, order.argsort()]

    contexts = [attending(loop, layers, side, around)]
    if side == "target" and stays in ("nothing", "output"):
        config = loop.target.config
        order = _tiled(config.num_attention_heads, config.num_key_value_heads)
        contexts += [changed(layer.self_attn.sinks, lambda logits: logits[order]) for _, layer in layers]
    return together(contexts)


def zero_sink(loop: Any, value: Any, side: str = "drafter") -> AbstractContextManager:
    """A sink with logit 0 where there is none."""

    def around(attend, q, k, v, mask):
        k, v = (torch.cat((rows, torch.zeros_like(rows[:, :, :1])), 2) for rows in (k, v))
        return attend(q, k, v, torch.cat((mask, torch.ones_like(mask[..., :1])), -1))

    return attending(loop, layers_of(loop, side, value), side, around)


def saturating_sum(loop: Any, value: Any, side: str, of: str) -> AbstractContextManager:
    """The softmax divided by a sum taken one by one in bfloat16: it stops growing at 256 and loses small terms.

    `of`: the "exponentials" of the scores, rounded, the sink last; or the finished "weights" over the keys.
    """

    def around(attend, q, k, v, mask):
        out, one = attend(q, k, v, mask), torch.eye(k.shape[2], dtype=v.dtype).expand(*v.shape[:2], -1, -1)
        terms = attend(q, k, one, mask).float()
        if of == "exponentials":
            terms = torch.cat((terms, (1 - terms.sum(-1, keepdim=True)).clamp(0)), -1)
            terms = (terms / terms.max(-1, keepdim=True).values).bfloat16().float()
        total = torch.zeros_like(terms[..., 0]).bfloat16()
        for term in terms.unbind(-1):
            total = (total.float() + term).bfloat16()
        return (out * terms.sum(-1, keepdim=True) / total.float()[..., None]).to(out.dtype)

    return attending(loop, layers_of(loop, side, value), side, around)


def sinks(loop: Any, value: Any, how: str) -> AbstractContextManager:
    """Other sink logits."""
    scale = loop.target.config.head_dim**-0.5
    group = loop.target.config.num_attention_heads // loop.target.config.num_key_value_heads
    change = {
        "grouped, read as interleaved": lambda logits: logits.view(-1, group).T.flatten(),
        "interleaved, read as grouped": lambda logits: logits.view(group, -1).T.flatten(),
        "missing": lambda logits: torch.full_like(logits, float("-inf")),
        "zero": torch.zeros_like,
        "doubled": lambda logits: 2 * logits,
        "counted twice": lambda logits: logits + torch.log(torch.tensor(2.0)),
        "scaled": lambda logits: logits * scale,
        "reversed": lambda logits: logits.flip(0),
    }[how]
    return together(changed(layer.self_attn.sinks, change) for _, layer in layers_of(loop, "target", value))


def sinks_rolled(loop: Any, many: int) -> AbstractContextManager:
    """Head n with the sink of head n - `many`."""
    return together(
        changed(layer.self_attn.sinks, lambda logits: logits.roll(many)) for _, layer in layers_of(loop, "target")
    )


def sinks_elsewhere(loop: Any, delta: int) -> AbstractContextManager:
    """Each layer with the sinks of the one `delta` later, round the end."""
    held = [layer.self_attn.sinks for _, layer in layers_of(loop, "target")]
    theirs = [sink.data for sink in held]
    return together(reweighted(sink, theirs[(place + delta) % len(held)]) for place, sink in enumerate(held))


def biased(loop: Any, value: Any, part: str, times: float) -> AbstractContextManager:
    """A projection's bias so many times."""
    biases = [getattr(layer.self_attn, f"{part}_proj").bias for _, layer in layers_of(loop, "target", value)]
    if any(bias is None for bias in biases):
        raise NotApplicable(f"{part}_proj has no bias")
    return together(changed(bias, lambda b: b * times) for bias in biases)


def bias_per_rank(loop: Any, ranks: int) -> AbstractContextManager:
    """The output bias once per rank."""
    return biased(loop, "all", "o", ranks)


def fused_layout(loop: Any, value: Any, side: str, read: str) -> AbstractContextManager:
    """One fused q, k, v weight, stored one way and read the other: concatenated, or grouped per kv head."""

    def contexts():
        for _, layer in layers_of(loop, side, value):
            attention = layer.self_attn
            parts = [attention.q_proj, attention.k_proj, attention.v_proj]
            for kind in ("weight", "bias"):
                if getattr(parts[0], kind) is not None:
                    held = [getattr(part, kind) for part in parts]
                    mixed = _mix([one.data for one in held], _head_dim(loop, side), read)
                    yield from map(reweighted, held, mixed)

    return together(list(contexts()))


def _head_dim(loop: Any, side: str) -> int:
    return (loop.target if side == "target" else loop.drafter).config.head_dim


def _mix(held: list[torch.Tensor], head_dim: int, read: str) -> list[torch.Tensor]:
    q, k, v = (part.unflatten(0, (-1, head_dim)) for part in held)
    group = len(q) // len(k)
    if read == "grouped":
        fused = torch.cat((q, k, v)).unflatten(0, (len(k), group + 2))
        q, k, v = fused[:, :group].flatten(0, 1), fused[:, group], fused[:, group + 1]
    else:
        fused = torch.cat((q.unflatten(0, (-1, group)), k[:, None], v[:, None]), 1).flatten(0, 1)
        q, k, v = fused.split((len(q), len(k), len(v)))
    return [part.flatten(0, 1) for part in (q, k, v)]


def kv_swapped(loop: Any, value: Any, side: str) -> AbstractContextManager:
    """Keys made by v_proj and values by k_proj."""

    def contexts():
        for _, layer in layers_of(loop, side, value):
            k, v = layer.self_attn.k_proj, layer.self_attn.v_proj
            for kind in ("weight", "bias"):
                some, other = getattr(k, kind), getattr(v, kind)
                if some is not None:
                    yield from (reweighted(some, other.data), reweighted(other, some.data))

    return together(list(contexts()))


def projected(loop: Any, value: Any, part: str, side: str, how: str) -> AbstractContextManager:
    """A projection's weight read in another memory order: transposed bytes in the same shape."""
    change = {
        "transposed": lambda w: w.T.reshape(w.shape),
        "heads interleaved": partial(_interleave, head_dim=_head_dim(loop, side)),
    }[how]
    return together(
        changed(getattr(layer.self_attn, f"{part}_proj").weight, change) for _, layer in layers_of(loop, side, value)
    )


def _interleave(w: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows of each head from half-split to interleaved order, as loaders of interleaved models permute them."""
    return w.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)
