"""One of the parts that a layer adds up, too large, too small or missing: a head, an expert, one of their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from parity.references.hypotheses.catalogue import Family, Mutation, Part
from parity.references.hypotheses.lazily import Loop, Tensor
from parity.references.hypotheses.masks import OUT, Attend, attending
from parity.references.hypotheses.mutating import NotApplicable, changed, layers_of, leaving, mlps, together
from parity.references.hypotheses.routing import FFN, running

parts = Family(values=(), fix="what is done by head, by group or by expert: offsets, tiles, scales, the last block")
QUERIES, GROUPS = "{side}.num_attention_heads", "{side}.num_key_value_heads"


@parts.both("part-head", "the output of head {value}", stages=OUT, part=QUERIES)
def _(loop: Loop, value: Part, side: str) -> Mutation:
    def around(attend: Attend, *inputs: Tensor) -> Tensor:
        return _scaled(attend(*inputs), 2, value.number, value.factor)

    return attending(loop, value.layer, around, side)


def _scaled(x: Tensor, axis: int, number: int, factor: float) -> Tensor:
    """The entries of one number of an axis times a factor."""
    scale = x.new_ones(x.shape[axis])
    scale[number] = factor
    return x * scale.view(*[-1 if place == axis else 1 for place in range(x.ndim)])


def projected(loop: Loop, value: Part, side: str, projection: str) -> Mutation:
    """One head of a projection's output."""
    return together(
        leaving(getattr(layer.self_attn, f"{projection}_proj"), lambda output: _head(output, -1, loop, value, side))
        for _, layer in layers_of(loop, side, value.layer)
    )


def unbiased(loop: Loop, value: Part, side: str, projection: str) -> Mutation:
    """One head of a projection's weight; its bias stays.

    Raises:
        NotApplicable: there is no bias, and nothing that tells this from the whole projection.
    """
    held = [getattr(layer.self_attn, f"{projection}_proj") for _, layer in layers_of(loop, side, value.layer)]
    if any(one.bias is None for one in held):
        raise NotApplicable(f"{projection}_proj has no bias")
    return together(changed(one.weight, lambda w: _head(w, 0, loop, value, side)) for one in held)


def _head(x: Tensor, axis: int, loop: Loop, value: Part, side: str) -> Tensor:
    """One head of an axis that holds all heads, times the factor."""
    config = loop.target.config if side == "target" else loop.drafter.config
    heads = x.unflatten(axis, (-1, int(config.head_dim)))
    place = axis % x.ndim
    return _scaled(heads, place, value.number, value.factor).flatten(place, place + 1)


ROWS: dict[str, Mapping[str, tuple[str, ...]]] = {
    name: {"target": (f"target.layers.*.{name}",), "drafter": OUT} for name in "qkv"
}
for name, shown in ROWS.items():
    heads = QUERIES if name == "q" else GROUPS
    parts.both(f"part-{name}", f"{name} of head {{value}}", stages=shown, part=heads)(
        partial(projected, projection=name)
    )
    parts.both(f"part-{name}-weight", f"{name} of head {{value}}, but for its bias", stages=shown, part=heads, cost=2)(
        partial(unbiased, projection=name)
    )

expert = parts.part(stages=FFN, part="target.num_local_experts")


@expert("part-expert", "target: the output of expert {value}")
def _(loop: Loop, value: Part) -> Mutation:
    def run(experts: object, inner: Callable[..., Tensor], hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return inner(hidden, ids, weights.where(ids != value.number, weights * value.factor))

    return running(loop, value.layer, run)


def weighted(loop: Loop, value: Part, name: str, columns: slice) -> Mutation:
    """One expert's weight or bias, or every second column of it: gate and up are interleaved."""

    def change(w: Tensor) -> Tensor:
        changed = w.clone()
        changed[value.number, ..., columns] *= value.factor
        return changed

    return together(changed(getattr(mlp.experts, name), change) for mlp in mlps(loop, value.layer))


WEIGHTS = {
    "down": ("down_proj", slice(None)),
    "down-bias": ("down_proj_bias", slice(None)),
    "gate": ("gate_up_proj", slice(0, None, 2)),
    "up": ("gate_up_proj", slice(1, None, 2)),
    "gate-up": ("gate_up_proj", slice(None)),
    "gate-up-bias": ("gate_up_proj_bias", slice(None)),
}
for name, (held, columns) in WEIGHTS.items():
    kind = name.replace("-", " ")
    says = f"target: the {kind if name.endswith('bias') else f'{kind} weight'} of expert {{value}}"
    expert(f"part-expert-{name}", says, cost=2)(partial(weighted, name=held, columns=columns))
