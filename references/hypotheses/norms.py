"""Other norms, on either side: left out, with other weights, in another order, alone or everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from parity.references.hypotheses.catalogue import (
    DENOISING,
    EVERY,
    FACTOR,
    PARALLEL,
    SIDES,
    TAPPED,
    Family,
    Fit,
    Mutation,
)
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.mutating import (
    Layer,
    Layers,
    NotApplicable,
    changed,
    exchanged,
    hidden_norm_of,
    layers_of,
    reweighted,
    together,
)
from parity.references.points import foreign, replaced

INPUT, HIDDEN, BEHIND, FINAL = "input_layernorm", "hidden_norm", "post_attention_layernorm", "norm"
QUERIES, KEYS = "q_norm", "k_norm"
STAGES = {
    ("target", INPUT): ("target.layers.*.attn_in",),
    ("target", BEHIND): ("target.layers.*.router_logits",),
    ("target", FINAL): ("target.pre_head_hidden",),
    ("drafter", INPUT): ("drafter.layers.*.attn_out",),
    ("drafter", HIDDEN): ("drafter.layers.0.attn_out",),
    ("drafter", QUERIES): ("drafter.layers.*.attn_out",),
    ("drafter", KEYS): ("drafter.layers.*.attn_out",),
    ("drafter", BEHIND): ("drafter.layers.*.ffn_out",),
    ("drafter", FINAL): ("drafter.pre_head_hidden",),
}
"""Every norm, by side and name in the order in which they run, and where it shows first."""

SHORT = {INPUT: "input", BEHIND: "mlp", HIDDEN: "hidden", FINAL: "final", QUERIES: "q", KEYS: "k"}
ONLY = {HIDDEN: TAPPED, QUERIES: DENOISING, KEYS: DENOISING}
"""The drafters that have a norm, where not all with weights do."""

NORM_FIX = "the norm's place and its weight, multiplied as it stands"


def shows(part: str) -> dict[str, tuple[str, ...]]:
    """Where a norm shows first on each side."""
    return {side: STAGES[side, part] for side in SIDES}


def _cast_first(norm: Callable[[Tensor], Tensor], x: Tensor, module: Layer) -> Tensor:
    """Rounded to bfloat16 before the weight multiplies."""
    eps = getattr(module, "variance_epsilon", None) or module.eps
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    weight: Tensor = module.weight
    return (normed.bfloat16().float() * weight.float()).to(x.dtype)


WEIGHTS: dict[str, Callable[[Tensor], Tensor]] = {
    "unweighted": lambda w: torch.ones_like(w),
    "plus one": lambda w: w + 1,
}
Rule = Callable[[Callable[[Tensor], Tensor], Tensor, Layer], Tensor]
RULES: dict[str, Rule] = {
    "missing": lambda norm, x, module: x,
    "centred": lambda norm, x, module: norm(x - x.mean(-1, keepdim=True)),
    "twice": lambda norm, x, module: norm(norm(x)),
    "sum of squares": lambda norm, x, module: norm(x) * x.shape[-1] ** -0.5,
    "cast first": _cast_first,
}
HOW = ("missing", "unweighted", "plus one", "centred", "twice", "sum of squares", "cast first")


def wrong(side: str) -> tuple[str, ...]:
    """How a side's norms can be wrong: a Llama casts first."""
    return HOW if side == "target" else HOW[:-1]


def norms_of(loop: Loop, side: str, part: str, value: Layers = "all") -> list[Layer]:
    """The norms of this name, in these layers; the final one and the fusion layer's of the hidden stand alone."""
    if part == FINAL:
        final = loop.target.model.model if side == "target" else loop.drafter
        return [final.norm] if hasattr(final, "norm") else []
    if part == HIDDEN:
        return [hidden_norm_of(loop)]
    if part in (QUERIES, KEYS):
        return [getattr(layer.self_attn, part) for _, layer in layers_of(loop, side, value)]
    return [getattr(layer, part) for _, layer in layers_of(loop, side, value)]


def _around(module: Layer, rule: Rule) -> Mutation:
    return foreign(module, "forward").around(lambda inner, x: rule(inner, x, module))


def norm(loop: Loop, value: Layers, side: str, part: str, how: str) -> Mutation:
    """A norm left out, or with other weights or another order."""
    norms = norms_of(loop, side, part, value)
    if how in WEIGHTS:
        return together(changed(module.weight, WEIGHTS[how]) for module in norms)
    return together(_around(module, RULES[how]) for module in norms)


norms = Family(fix=NORM_FIX)
for (side, part), stages in STAGES.items():
    for how in wrong(side):
        id = (
            "norm-cast-first" if (part, how) == (INPUT, "cast first") else f"norm-{SHORT[part]}-{how.replace(' ', '-')}"
        )
        norms.both(
            id,
            f"{part}, {how}",
            sides=(side,),
            stages=stages,
            layered=part in (INPUT, BEHIND, QUERIES, KEYS),
            drafters=ONLY.get(part, EVERY),
            seen=("gpt-oss vs Llama",) if how == "cast first" else (),
        )(partial(norm, part=part, how=how))


MASKED, COMMITTED = "masked rows", "committed rows"


@contextmanager
def on_some_rows(loop: Loop, rows: str, side: str, part: str) -> Iterator[None]:
    """A norm left out on the masked rows of a draft pass alone, or on the committed ones in front of them."""
    border, behind = [0], [0]

    def fused(inner: Callable[..., Tensor], taps: Tensor, masked: int) -> Tensor:
        border[:], behind[:] = [len(taps)], [masked]
        return inner(taps, masked)

    def left_out(norm: Callable[[Tensor], Tensor], x: Tensor, _: Layer) -> Tensor:
        if not behind[0] or x.shape[-2] != border[0] + behind[0]:
            return norm(x)
        made, at = norm(x), border[0]
        kept = (made[..., :at, :], x[..., at:, :]) if rows == MASKED else (x[..., :at, :], made[..., at:, :])
        return torch.cat(kept, dim=-2)

    with loop.fused.around(fused), together(_around(module, left_out) for module in norms_of(loop, side, part)):
        yield


for part in (INPUT, HIDDEN, BEHIND):
    norms(
        f"norm-{SHORT[part]}-missing-on-some-rows",
        f"drafter: {part}, missing on the {{value}} of a draft pass",
        stages=STAGES["drafter", part],
        values=(MASKED, COMMITTED),
        drafters=PARALLEL,
        cost=2,
    )(partial(on_some_rows, side="drafter", part=part))


def scaled(loop: Loop, factor: float, side: str, part: str) -> Mutation:
    """A norm's output so many times as large: what it divides by is another number of columns, or another power."""
    return together(_around(module, lambda norm, x, _: norm(x) * factor) for module in norms_of(loop, side, part))


for (side, part), stages in STAGES.items():
    if stages[0].endswith("attn_out"):  # elsewhere its rows are shown, or led back to
        norms.both(
            f"norm-{SHORT[part]}-scaled",
            f"{part}, its output {{value:.4g}} times as large",
            sides=(side,),
            stages=stages,
            values=(2.0, 0.5),
            fit=FACTOR,
            drafters=ONLY.get(part, EVERY),
        )(partial(scaled, part=part))


@norms.both(
    "norm-eps",
    "eps of the norms is {value:g}",
    stages={"target": ("target.layers.0.attn_in",), "drafter": STAGES["drafter", INPUT]},
    values=(1e-6, 1e-12, 1e-3),
    fit=Fit(1e-8, 1.0, clean=1e-5, log=True, constant="{side}.rms_norm_eps"),
    fix="rms_norm_eps of the config",
)
def _(loop: Loop, value: float, side: str) -> Mutation:
    name, modules = every_norm(loop, side)
    if getattr(modules[0], name) == value:
        raise NotApplicable(f"eps is {value}")
    return together(replaced(module, name, value) for module in modules)


def every_norm(loop: Loop, side: str) -> tuple[str, list[Layer]]:
    """What a side's norms call their eps, and all of them."""
    name = "variance_epsilon" if side == "target" else "eps"
    body = loop.target.model if side == "target" else loop.drafter
    return name, [module for module in body.modules() if hasattr(module, name)]


@norms.both(
    "norms-scaled",
    "every norm's output {value:.4g} times as large",
    stages={"target": ("target.layers.0.attn_in",), "drafter": STAGES["drafter", INPUT]},
    values=(2.0, 0.5),
    fit=FACTOR,
)
def _(loop: Loop, factor: float, side: str) -> Mutation:
    """What a square is divided by, in all of them: another number of columns, or one of them fewer."""
    return together(_around(module, lambda norm, x, _: norm(x) * factor) for module in every_norm(loop, side)[1])


weights = Family(by_side=True, fix="the names of the norms' tensors at load")


@weights.both(
    "norm-input-weight-of-mlp", "the first norm takes the second one's weight", stages=shows(INPUT), layered=True
)
def _(loop: Loop, value: Layers, side: str) -> Mutation:
    layers = [layer for _, layer in layers_of(loop, side, value)]
    return together(reweighted(getattr(one, INPUT).weight, getattr(one, BEHIND).weight.data) for one in layers)


@weights.both(
    "norm-mlp-weight-of-input", "the second norm takes the first one's weight", stages=shows(BEHIND), layered=True
)
def _(loop: Loop, value: Layers, side: str) -> Mutation:
    layers = [layer for _, layer in layers_of(loop, side, value)]
    return together(reweighted(getattr(one, BEHIND).weight, getattr(one, INPUT).weight.data) for one in layers)


@weights.both(
    "norm-weights-swapped", "the first and the second norm have each other's weight", stages=shows(INPUT), layered=True
)
def _(loop: Loop, value: Layers, side: str) -> Mutation:
    layers = [layer for _, layer in layers_of(loop, side, value)]
    return together(exchanged(getattr(one, INPUT).weight, getattr(one, BEHIND).weight) for one in layers)


def neighbour_weight(loop: Loop, delta: int, side: str, part: str) -> Mutation:
    """A norm's weights from the layer `delta` later; the outermost layer keeps its own."""
    held = [module.weight for module in norms_of(loop, side, part)]
    theirs = [weight.data for weight in held]
    places = [place for place in range(len(held)) if 0 <= place + delta < len(held)]
    return together(reweighted(held[place], theirs[place + delta]) for place in places)


for part in (INPUT, BEHIND):
    weights.both(
        f"norm-{SHORT[part]}-weight-of-layer",
        f"{part} has the weight of the layer {{value:+d}} from it",
        stages=shows(part),
        values=(1, -1),
    )(partial(neighbour_weight, part=part))

OTHERS: dict[str, Callable[[list[Layer], Layer | None], Layer | None]] = {
    "the last layer's mlp norm's": lambda layers, other: getattr(layers[-1], BEHIND),
    "the last layer's input norm's": lambda layers, other: getattr(layers[-1], INPUT),
    "the first layer's input norm's": lambda layers, other: getattr(layers[0], INPUT),
    "the hidden norm's": lambda layers, other: getattr(layers[0], HIDDEN, None),
    "the other model's": lambda layers, other: other,
}
"""Of a side's layers and the other side's final norm, one norm; None where there is none such."""


@weights.both("norm-final-weight-of", "the final norm's weight is {value}", stages=shows(FINAL), values=OTHERS)
def _(loop: Loop, value: str, side: str) -> Mutation:
    (own,), other = (norms_of(loop, model, FINAL) for model in sorted(SIDES, key=lambda model: model != side))
    theirs = OTHERS[value]([layer for _, layer in layers_of(loop, side)], next(iter(other), None))
    if theirs is None:
        raise NotApplicable("no such norm")
    return reweighted(own.weight, theirs.weight.data)


everywhere = Family(by_side=True, fix=NORM_FIX)


def all_norms(loop: Loop, value: None, side: str, how: str) -> Mutation:
    """All norms of a side wrong in the same way."""
    family = loop.drafter.config.family
    parts = [part for model, part in STAGES if model == side and family in ONLY.get(part, EVERY)]
    return together(norm(loop, "all", side, part, how) for part in parts)


for side in SIDES:
    for how in wrong(side):
        everywhere.both(
            f"norm-all-{how.replace(' ', '-')}",
            f"all its norms, {how}",
            sides=(side,),
            stages=("{side}.layers.0." + ("attn_in" if side == "target" else "attn_out"),),
        )(partial(all_norms, how=how))
