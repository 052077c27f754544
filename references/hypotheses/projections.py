"""Other orders of heads, layouts of attention's weights, and biases, on either side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from parity.references.hypotheses.catalogue import Family, Fit, Mutation
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.masks import KEYS, OUT, Attend, attending
from parity.references.hypotheses.mutating import (
    Layers,
    NotApplicable,
    changed,
    exchanged,
    head_counts,
    layers_of,
    reweighted,
    target_layers,
    together,
)

GROUP_FIX = "the reshape between heads and groups: heads of a group are neighbours"

orders = Family(attending, stages=OUT, layered=True, fix=GROUP_FIX)
orders.both("attn-gqa-next", "every query head attends to the next kv head")(
    lambda attend, q, k, v, mask: attend(q, k.roll(-1, 1), v.roll(-1, 1), mask)
)
orders.both("attn-head-order", "heads in reverse order before o_proj")(
    lambda attend, q, k, v, mask: attend(q, k, v, mask).flip(2)
)
orders.both("attn-head-tiled", "heads before o_proj in the order of a tiled grouping")(
    lambda attend, q, k, v, mask: attend(q, k, v, mask)[:, :, _tiled(q.shape[1], k.shape[1])]
)
orders.both("attn-head-transposed", "head and width axes transposed before o_proj")(
    lambda attend, q, k, v, mask: (out := attend(q, k, v, mask)).transpose(2, 3).reshape(out.shape)
)


def _tiled(N: int, G: int) -> Tensor:
    """The heads in the order in which n mod G counts up: place p of N has head (p mod N/G) * G + p div N/G."""
    return torch.arange(N).view(N // G, G).T.flatten()


groups = Family(stages=OUT, layered=True, fix=GROUP_FIX)


def tiled(loop: Loop, value: Layers, side: str, stays: str) -> Mutation:
    """Query head n reads kv head n mod G.

    `stays` names what goes by the place in that order instead of following the head: nothing, sinks, output or both.
    """

    def around(attend: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        order = _tiled(q.shape[1], k.shape[1])
        out = attend(q[:, order], k, v, mask)
        return out if stays in ("output", "both") else out[:, :, order.argsort()]

    contexts = [attending(loop, value, around, side)]
    if side == "target" and stays in ("nothing", "output"):
        order = _tiled(*head_counts(loop, side))
        contexts += [
            changed(layer.self_attn.sinks, lambda logits: logits[order]) for _, layer in target_layers(loop, value)
        ]
    return together(contexts)


TILED = "query head n attends to kv head n mod G instead of n div (N / G)"
groups.both("attn-gqa-tiled", TILED)(partial(tiled, stays="nothing"))
groups.both("attn-gqa-tiled-sinks", f"{TILED}; the sinks stay where they were", sides=("target",))(
    partial(tiled, stays="sinks")
)
groups.both("attn-gqa-tiled-output", f"{TILED}; the outputs stay in that order before o_proj")(
    partial(tiled, stays="output")
)
groups.both("attn-gqa-tiled-both", f"{TILED}; sinks and outputs go by that order", sides=("target",))(
    partial(tiled, stays="both")
)

layouts = Family(layered=True)


def fused_layout(loop: Loop, value: Layers, side: str, read: str) -> Mutation:
    """One fused q, k, v weight, stored one way and read the other: concatenated, or grouped per kv head."""

    def contexts() -> Iterator[Mutation]:
        for _, layer in layers_of(loop, side, value):
            projections = [getattr(layer.self_attn, f"{part}_proj") for part in "qkv"]
            for kind in ("weight", "bias"):
                held = [getattr(projection, kind) for projection in projections]
                if held[0] is not None:
                    yield from map(reweighted, held, _mixed(held, _head_dim(loop, side), read))

    return together(contexts())


def _head_dim(loop: Loop, side: str) -> int:
    return int((loop.target if side == "target" else loop.drafter).config.head_dim)


def _mixed(held: list[Tensor], head_dim: int, read: str) -> list[Tensor]:
    q, k, v = (part.data.unflatten(0, (-1, head_dim)) for part in held)
    group = len(q) // len(k)
    if read == "grouped":
        fused = torch.cat((q, k, v)).unflatten(0, (len(k), group + 2))
        q, k, v = fused[:, :group].flatten(0, 1), fused[:, group], fused[:, group + 1]
    else:
        fused = torch.cat((q.unflatten(0, (-1, group)), k[:, None], v[:, None]), 1).flatten(0, 1)
        q, k, v = fused.split((len(q), len(k), len(v)))
    return [part.flatten(0, 1) for part in (q, k, v)]


for id, read in (("attn-gqa-layout", "grouped"), ("attn-gqa-packed", "concatenated")):
    layouts.both(
        id,
        f"the fused q, k, v weight is read {read}, and is not stored so",
        stages={"target": ("target.layers.*.q", "target.layers.*.k"), "drafter": ("drafter.layers.*.attn_out",)},
        fix="one layout of the fused weight at load and in the kernel",
        seen=("NeMo-RL #2802",),
    )(partial(fused_layout, read=read))


@layouts.both(
    "load-kv-swapped",
    "k_proj makes the values and v_proj the keys",
    stages=KEYS,
    fix="the order of the fused kv weight",
)
def _(loop: Loop, value: Layers, side: str) -> Mutation:
    attentions = [layer.self_attn for _, layer in layers_of(loop, side, value)]
    pairs = [(attention.k_proj, attention.v_proj) for attention in attentions]
    weights = [(k.weight, v.weight) for k, v in pairs]
    return together(exchanged(*pair) for pair in weights + [(k.bias, v.bias) for k, v in pairs if k.bias is not None])


def projected(loop: Loop, value: Layers, side: str, part: str, change: Callable[[Tensor, int], Tensor]) -> Mutation:
    """`change(weight, D)` of a projection's weight [heads * D, in] in the same shape."""
    width = _head_dim(loop, side)
    weights = [getattr(layer.self_attn, f"{part}_proj").weight for _, layer in layers_of(loop, side, value)]
    return together(changed(weight, lambda w: change(w, width)) for weight in weights)


def _interleaved(w: Tensor, width: int) -> Tensor:
    """Rows of each head from half-split to interleaved order, as loaders of interleaved models permute them."""
    parts: Tensor = w.unflatten(0, (-1, 2, width // 2))
    return parts.transpose(1, 2).flatten(0, 2)


def _first(part: str) -> dict[str, tuple[str, ...]]:
    """Where a projection shows first."""
    return {"target": (f"target.layers.*.{'attn_out' if part == 'o' else part}",), "drafter": OUT}


for part in "qkvo":
    layouts.both(
        f"load-{part}-transposed",
        f"{part}_proj is read transposed in the same shape",
        stages=_first(part),
        fix="weights are stored [out, in]; a kernel that multiplies x @ W needs them transposed",
    )(partial(projected, part=part, change=lambda w, width: w.T.reshape(w.shape)))
for part in "qk":
    layouts.both(
        f"load-{part}-permuted",
        f"{part}_proj is permuted for interleaved rotation",
        stages=_first(part),
        fix="no permutation at load: the checkpoint is half-split already",
    )(partial(projected, part=part, change=_interleaved))

biases = Family(layered=True, fix="attention_bias is true in gpt-oss: q, k, v and o have one, added once")


def biased(loop: Loop, value: Layers, part: str, times: float) -> Mutation:
    """The biases of these projections, a letter each, so many times."""
    layers = [layer.self_attn for _, layer in target_layers(loop, value)]
    held = [getattr(layer, f"{letter}_proj").bias for layer in layers for letter in part]
    if any(bias is None for bias in held):
        raise NotApplicable(f"{part}_proj has no bias")
    return together(changed(bias, lambda b: b * times) for bias in held)


for part in "qkvo":
    for id, says, times in (("missing", "is missing", 0.0), ("twice", "is added twice", 2.0)):
        biases(f"attn-{part}-bias-{id}", f"target: the bias of {part}_proj {says}", stages=_first(part))(
            partial(biased, part=part, times=times)
        )

biases(
    "attn-qkv-bias-missing",
    "target: the biases of q_proj, k_proj and v_proj are missing",
    stages=tuple(f"target.layers.*.{part}" for part in "qkv"),
)(partial(biased, part="qkv", times=0.0))


@biases(
    "attn-qkv-bias-order",
    "target: the biases of q_proj, k_proj and v_proj are one vector in another order: {value}",
    stages=tuple(f"target.layers.*.{part}" for part in "qkv"),
    layered=False,
    values=("qvk", "kqv", "kvq", "vqk", "vkq"),
    fix="a fused projection's matrix and its bias are put together in one order: q, k, v",
)
def _(loop: Loop, order: str) -> Mutation:
    """What stands where q's, k's and v's biases are due."""
    made = []
    for _, layer in target_layers(loop, "all"):
        held = {part: getattr(layer.self_attn, f"{part}_proj").bias for part in "qkv"}
        if any(bias is None for bias in held.values()):
            raise NotApplicable("q_proj, k_proj or v_proj has no bias")
        vector = torch.cat([held[part].data for part in order])
        parts = vector.split([len(bias) for bias in held.values()])
        pairs = zip(held.values(), parts, strict=True)
        made += [reweighted(bias, other) for bias, other in pairs if not torch.equal(bias.data, other)]
    return together(made)


@biases(
    "attn-o-bias-per-rank",
    "target: the output bias is added {value} times, once per rank",
    stages=OUT,
    layered=False,
    values=(4, 8, 2, 16),
    fit=Fit(0.0, 64.0, clean=1.0),
    fix="add the bias behind the all-reduce, or on one rank",
    seen=("mirage #722",),
)
def _(loop: Loop, ranks: float) -> Mutation:
    return biased(loop, "all", "o", ranks)
