"""Other scores, on either side: their scale, the target's sinks, the softmax' sum."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from parity.references.hypotheses.caches import FORMS
from parity.references.hypotheses.catalogue import FACTOR, Family, Fit, Mutation
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.masks import OUT, Attend, attending, seen_keys
from parity.references.hypotheses.mutating import Layers, changed, head_counts, reweighted, target_layers, together

scores = Family(stages=OUT)

EIGHT_BITS = ("float8 e4m3", "float8 e5m2")
"""Formats in which a kernel hands the softmax's weights to its second product."""


@scores.both(
    "attn-scale",
    "scores are {value} (a number: times what they should be)",
    values=("not scaled", "scaled twice", "scaled by 1/sqrt(H)", "scaled by 1/sqrt(N*D)"),
    fit=FACTOR,
    fix="the attention scale is 1 / sqrt(head_dim)",
)
def _(loop: Loop, value: float | str, side: str) -> Mutation:
    config = loop.target.config if side == "target" else loop.drafter.config
    root = config.head_dim**0.5
    known = {
        "not scaled": root,
        "scaled twice": 1 / root,
        "scaled by 1/sqrt(H)": root / config.hidden_size**0.5,
        "scaled by 1/sqrt(N*D)": 1 / head_counts(loop, side)[0] ** 0.5,
    }
    factor = known[value] if isinstance(value, str) else value
    return attending(loop, "all", lambda attend, q, k, v, mask: attend(q * factor, k, v, mask), side)


def _sinking(loop: Loop, value: Layers, change: Callable[[Tensor, int, int], Tensor]) -> Mutation:
    """`change(logits, N / G, D)` of the sink logits [N]."""
    (heads, groups), width = head_counts(loop, "target"), loop.target.config.head_dim
    sinks = [layer.self_attn.sinks for _, layer in target_layers(loop, value)]
    return together(changed(sink, lambda logits: change(logits, heads // groups, width)) for sink in sinks)


sinks = Family(
    _sinking,
    stages=OUT,
    layered=True,
    fix="the sink logit of each head: one more column of the softmax, unscaled, once, dropped afterwards",
)
sinks("attn-sinks-missing", "target: sinks, missing", seen=("vllm-metal #550",))(
    lambda logits, group, width: torch.full_like(logits, float("-inf"))
)
sinks("attn-sinks-zero", "target: sinks, zero")(lambda logits, group, width: torch.zeros_like(logits))
sinks("attn-sinks-doubled", "target: sinks, doubled")(lambda logits, group, width: 2 * logits)
sinks("attn-sinks-counted-twice", "target: sinks, counted twice")(
    lambda logits, group, width: logits + torch.log(torch.tensor(2.0))
)
sinks("attn-sinks-scaled", "target: sinks, scaled")(lambda logits, group, width: logits * width**-0.5)
sinks("attn-sinks-reversed", "target: sinks, reversed")(lambda logits, group, width: logits.flip(0))
sinks("attn-sinks-interleaved", "target: sinks, grouped, read as interleaved")(
    lambda logits, group, width: logits.view(-1, group).T.flatten()
)
sinks("attn-sinks-grouped", "target: sinks, interleaved, read as grouped")(
    lambda logits, group, width: logits.view(group, -1).T.flatten()
)

moved = Family(
    stages=OUT, fix="the slice of the sinks that goes with a rank's heads, and the layer number of their tensor"
)


@moved(
    "attn-sinks-rolled", "target: head n has the sink of the head {value} before", values=(1, -1, 2, -2, 4, -4, 8, -8)
)
def _(loop: Loop, many: int) -> Mutation:
    return _sinking(loop, "all", lambda logits, group, width: logits.roll(many))


@moved("attn-sinks-layer", "target: a layer has the sinks of the layer {value:+d} from it", values=(1, -1, 2, -2))
def _(loop: Loop, delta: int) -> Mutation:
    """Round the end."""
    held = [layer.self_attn.sinks for _, layer in target_layers(loop)]
    theirs = [sink.data for sink in held]
    return together(reweighted(sink, theirs[(place + delta) % len(held)]) for place, sink in enumerate(held))


@moved(
    "attn-sinks-far",
    "target: a row that sees more than {value} keys has no sink",
    values=(32, 64, 128),
    fit=Fit(2, 512, clean=None, log=True, whole=True),
    fix="the sink is a column of every row's softmax, however its keys are cut into blocks",
)
def _(loop: Loop, many: int) -> Mutation:
    def change(attend: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        out, kept = attend(q, k, v, mask), _weights(attend, q, k, v, mask).sum(-1, keepdim=True)
        far = (seen_keys(mask).sum(-1) > many).transpose(1, 2)[..., None]
        return torch.where(far, out / kept, out).to(out.dtype)

    return attending(loop, "all", change)


softmax = Family(
    attending, stages=OUT, layered=True, fix="accumulate in float32", seen=("eager NumPy on ml_dtypes arrays",)
)


@softmax.both(
    "attn-sinks-added",
    "a sink with logit 0, where none belongs",
    sides=("drafter",),
    fix="the drafter is a Llama: no sinks",
    seen=(),
)
def _(attend: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    k, v = (torch.cat((rows, torch.zeros_like(rows[:, :, :1])), 2) for rows in (k, v))
    return attend(q, k, v, torch.cat((mask, torch.ones_like(mask[..., :1])), -1))


def _divided_anew(out: Tensor, terms: Tensor) -> Tensor:
    """Attention whose `terms` [B, S, N, keys] are added one by one in bfloat16: a sum stops growing at 256."""
    total = torch.zeros_like(terms[..., 0]).bfloat16()
    for term in terms.unbind(-1):
        total = (total.float() + term).bfloat16()
    return (out * terms.sum(-1, keepdim=True) / total.float()[..., None]).to(out.dtype)


def _weights(attend: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    unit = torch.eye(k.shape[2], dtype=v.dtype).expand(*v.shape[:2], -1, -1)
    return attend(q, k, unit, mask).float()


@softmax.both(
    "attn-softmax-bf16-sum", "the softmax is divided by the sum of its exponentials, added one by one in bfloat16"
)
def _(attend: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Of the rounded exponentials of the scores, the sink last."""
    terms = _weights(attend, q, k, v, mask)
    terms = torch.cat((terms, (1 - terms.sum(-1, keepdim=True)).clamp(0)), -1)
    return _divided_anew(attend(q, k, v, mask), (terms / terms.max(-1, keepdim=True).values).bfloat16().float())


@softmax.both(
    "attn-softmax-bf16-sum-weights", "the softmax is divided by the sum of its weights, added one by one in bfloat16"
)
def _(attend: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return _divided_anew(attend(q, k, v, mask), _weights(attend, q, k, v, mask))


def _kept(attend: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, low: Callable[[Tensor], Tensor]) -> Tensor:
    """Attention by weights in fewer bits; what they are rounded by is not made up for."""
    weights = low(_weights(attend, q, k, v, mask))
    values = v.repeat_interleave(weights.shape[2] // v.shape[1], 1).float()
    return torch.einsum("bsnt,bntd->bsnd", weights, values).to(v.dtype)


for form in EIGHT_BITS:
    softmax.both(
        f"attn-weights-{form.split()[-1]}", f"the softmax's weights are kept in {form} before they multiply the values"
    )(partial(_kept, low=FORMS[form]))
