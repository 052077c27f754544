"""Norms with other norms' weights, norms wrong everywhere, what MLPs and routers are fed, forms of the logits."""

from __future__ import annotations

from functools import partial

from parity.references.hypotheses.catalogue import Fit, Hypothesis, Mutations
from parity.references.hypotheses.layers import NORM_FIX, NORM_STAGES, RESIDUAL_FIX, SHORT

feeding, heads = Mutations("feeding"), Mutations("heads")

ALL = dict(values=("all",), layered=True)
INPUT, BEHIND = "input_layernorm", "post_attention_layernorm"
WEIGHT_FIX = "the names of the norms' tensors at load"
FIRST = {"target": ("target.layers.0.attn_in",), "drafter": ("drafter.layers.0.attn_out",)}
LOGITS = {"target": ("target.logits", "verify.logits"), "drafter": ("drafter.logits",)}


def _weights(side: str, end: str):
    for id_, how, says, part in (
        ("norm-input-weight-of-mlp", "input", "the first norm takes the second one's weight", INPUT),
        ("norm-mlp-weight-of-input", "mlp", "the second norm takes the first one's weight", BEHIND),
        ("norm-weights-swapped", "swapped", "the first and the second norm have each other's weight", INPUT),
    ):
        apply = partial(feeding.other_weight, side=side, how=how)
        yield Hypothesis(id_ + end, f"{side}: {says}", NORM_STAGES[side, part], apply, fix=WEIGHT_FIX, **ALL)
    for part in (INPUT, BEHIND):
        yield Hypothesis(
            f"norm-{SHORT[part]}-weight-of-layer{end}",
            f"{side}: {part} has the weight of the layer {{value:+d}} from it",
            NORM_STAGES[side, part],
            partial(feeding.neighbour_weight, side=side, part=part),
            values=(1, -1),
            fix=WEIGHT_FIX,
        )
    layers = ("the last layer's mlp norm's", "the last layer's input norm's", "the first layer's input norm's")
    yield Hypothesis(
        f"norm-final-weight-of{end}",
        f"{side}: the final norm's weight is {{value}}",
        NORM_STAGES[side, "norm"],
        partial(feeding.final_weight, side=side),
        values=(*layers, "the hidden norm's", "the other model's"),
        fix=WEIGHT_FIX,
    )


def _everywhere(side: str, end: str):
    for how in ("missing", "unweighted", "plus one", "centred", "twice", "sum of squares", "cast first"):
        if how == "cast first" and side == "drafter":
            continue  # a Llama casts first
        yield Hypothesis(
            f"norm-all-{how.replace(' ', '-')}{end}",
            f"{side}: all its norms, {how}",
            FIRST[side],
            partial(feeding.everywhere, side=side, how=how),
            fix=NORM_FIX,
        )


def _fed(side: str, end: str):
    for id_, what, says in (
        ("mlp-before-attention", "before", "the layer's input, without the attention"),
        ("mlp-of-branch", "branch", "the attention's output alone"),
        ("mlp-parallel", "shared", "the first norm's output, as beside the attention"),
    ):
        yield Hypothesis(
            f"residual-{id_}{end}",
            f"{side}: the MLP is fed from {says}; the residual stream is right",
            NORM_STAGES[side, BEHIND],
            partial(feeding.mlp_input, side=side, what=what),
            fix=RESIDUAL_FIX,
            **ALL,
        )


def _routed():
    for who, stages in (("router", ("target.layers.*.router_logits",)), ("experts", ("target.layers.*.ffn_out",))):
        for id_, what, says in (
            ("unnormed", "un-normed", "the stream un-normed"),
            ("before-attention", "before", "the norm of the stream without the attention"),
        ):
            yield Hypothesis(
                f"ffn-{who}-{id_}",
                f"the {who} alone {'is' if who == 'router' else 'are'} fed {says}",
                stages,
                partial(feeding.routed_from, who=who, what=what),
                fix="router and experts take the same normed stream",
                **ALL,
            )


def _logits(side: str, end: str):
    yield Hypothesis(
        f"logits-capped{end}",
        f"{side}: logits are soft-capped, c tanh(x / c) with c = {{value:.4g}}",
        LOGITS[side],
        partial(heads.capped, side=side),
        values=(30.0, 50.0),
        fit=Fit(1.0, 200.0, clean=None, log=True),
        fix="these models do not cap their logits",
        cost=2 if end else 1,
    )
    yield Hypothesis(
        f"logits-form{end}",
        f"{side}: logits are handed over as {{value}}",
        LOGITS[side],
        partial(heads.formed, side=side),
        values=("their log softmax", "their softmax", "less the largest", "less their mean"),
        fix="logits as the head gives them",
        cost=2 if end else 1,
    )


SIDES = (("target", ""), ("drafter", "-drafter"))
HYPOTHESES = (
    *(one for made in (_weights, _everywhere, _fed, _logits) for side, end in SIDES for one in made(side, end)),
    *_routed(),
)
