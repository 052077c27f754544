"""Weights that a loader puts where they do not belong, or packs and unpacks another way."""

from __future__ import annotations

from functools import partial
from itertools import combinations

from parity.references.hypotheses.catalogue import Fit, Hypothesis, Mutations
from parity.references.hypotheses.inference import LayerPair, exchanged_experts

experts, exchanged = Mutations("experts"), Mutations("exchanged")

ALL = dict(values=("all",), layered=True)
FFN, ATTN = ("target.layers.*.ffn_out",), ("drafter.layers.*.attn_out",)
PARTS = {"": ("gate_up_proj", "down_proj"), "-gate-up": ("gate_up_proj",), "-down": ("down_proj",)}
MOST_LAYERS = 8
"""Pairs are tried one by one among so many layers; of deeper models the device's own errors tell them."""


def _mxfp4():
    for suffix, parts in PARTS.items():
        names = " and ".join(parts)
        yield Hypothesis(
            f"load-mxfp4-nibbles{suffix}",
            f"MXFP4: the high nibble is taken first, neighbouring inputs of {names} swap",
            FFN,
            partial(experts.nibbles, parts=parts),
            fix="low nibble first",
            seen=("code paths of gpt-oss loaders",),
            **ALL,
        )
        yield Hypothesis(
            f"load-mxfp4-scale{suffix}",
            f"MXFP4: block scales of {names} are {{value:g}} times what they should be",
            FFN,
            partial(experts.block_scale, parts=parts),
            values=(2.0, 0.5, 4.0, 0.25),
            fit=Fit(1 / 64, 64.0, clean=1.0, log=True),
            fix="value * 2 ** (scale - 127)",
        )
        yield Hypothesis(
            f"load-nibbles-outputs{suffix}",
            f"neighbouring outputs of {names} swap, as if two shared a byte",
            FFN,
            partial(experts.nibbles, parts=parts, axis=2),
            fix="MXFP4 packs neighbours of the input axis",
            **ALL,
        )


def _exchanged():
    for suffix, part in (
        ("", "all"),
        ("-gate-up", "gate_up"),
        ("-gate-up-and-bias", "gate_up and its bias"),
        ("-down", "down"),
        ("-down-and-bias", "down and its bias"),
    ):
        yield Hypothesis(
            f"load-experts-exchanged{suffix}",
            f"(layer, expert, other): {{value}} hold each other's weights: {part}",
            FFN,
            partial(exchanged.experts, part=part),
            values=(),
            infer=exchanged_experts,
            fix="the order in which experts' tensors are stacked at load",
        )
    for side, count in (("target", MOST_LAYERS), ("drafter", 5)):
        end = "" if side == "target" else "-drafter"
        first = 0 if side == "target" else 1  # the fusion layer has another shape
        in_attention = ("target.layers.*.attn_in", "target.layers.*.q", "target.layers.*.k", "target.layers.*.v")
        for suffix, part, stages in (
            ("", None, in_attention if side == "target" else ATTN),
            ("-attention", "self_attn", in_attention[1:] if side == "target" else ATTN),
            ("-mlp", "mlp", ("target.layers.*.router_logits",) if side == "target" else ("drafter.layers.*.ffn_out",)),
        ):
            yield Hypothesis(
                f"load-layers-exchanged{suffix}{end}",
                f"{side}: layers {{value}} hold each other's weights: {part or 'all'} (words: each holds those of another)",
                stages,
                partial(exchanged.layers, side=side, part=part),
                values=("the next one's", "the previous one's", *combinations(range(first, count), 2)),
                infer=LayerPair(stages[-1].replace("*", "{l}")),
                fix="the layer number in the names of the checkpoint's tensors",
            )


HYPOTHESES = (*_mxfp4(), *_exchanged())
