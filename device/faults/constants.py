"""Faults of the config: constants that are slightly off. Bfloat16 rounds what they change away; float32 does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from parity.device.faults.planting import EITHER, PARALLEL, Family
from parity.device.model import Model
from parity.device.pipeline import Pipeline
from parity.device.rope_config import RopeConfig

FFN, Q, DRAFT = "target.layers.0.ffn_out", "target.layers.0.q", "drafter.layers.0.attn_out"
QK = ("target.layers.*.q", "target.layers.*.k")
NORMED = (
    "target.layers.*.attn_in",
    "target.layers.*.router_logits",
    "target.layers.*.ffn_out",
    "target.pre_head_hidden",
)
DRAFTED = ("drafter.layers.*.attn_out", "kv.drafter.*.k")
DRAFT_NORMED = ("drafter.layers.*.attn_out", "drafter.layers.*.ffn_out", "drafter.pre_head_hidden", "kv.drafter.*")
fault = Family("constants", precision="float32", seen="constants typed in or rounded by hand")
drafter = Family(
    "constants", precision="float32", same_text=True, seen="constants typed in or rounded by hand", drafters=EITHER
)


@fault("const-swiglu-alpha", "swiglu_alpha 1.7 where 1.702 is meant", FFN, sites=("target.layers.*.ffn_out",))
def _(pipeline: Pipeline) -> None:
    _config(pipeline.target, alpha=1.7)


@fault("const-norm-eps", "rms_norm_eps 1e-6, Llama 2's, where 1e-5 is meant", "target.layers.0.attn_in", sites=NORMED)
def _(pipeline: Pipeline) -> None:
    _config(pipeline.target, eps=1e-6)


@fault("const-rope-theta", "rope_theta 0.2 % too large", Q, sites=QK)
def _(pipeline: Pipeline) -> None:
    _turn(pipeline.target, lambda rope: replace(rope, theta=rope.theta * 1.002))


@fault("const-rope-factor", "YaRN factor 0.5 % too large, the concentration right", Q, sites=QK)
def _(pipeline: Pipeline) -> None:
    _turn(pipeline.target, lambda rope: replace(rope, factor=rope.factor * 1.005))


@fault("const-rope-concentration", "YaRN concentration rounded to three digits", Q, sites=QK)
def _(pipeline: Pipeline) -> None:
    _turn(pipeline.target, lambda rope: replace(rope, magnitude=round(rope.magnitude, 3)))


@drafter("const-drafter-eps", "drafter's rms_norm_eps 1e-6 where 1e-5 is meant", DRAFT, sites=DRAFT_NORMED)
def _(pipeline: Pipeline) -> None:
    _config(pipeline.drafter, eps=1e-6)


@drafter("const-drafter-theta", "drafter's rope_theta 0.2 % too large", DRAFT, sites=DRAFTED)
def _(pipeline: Pipeline) -> None:
    _turn(pipeline.drafter, lambda rope: replace(rope, theta=rope.theta * 1.002))


@drafter(
    "const-drafter-high-freq",
    "drafter's high_freq_factor 3.99 where 4 is meant",
    DRAFT,
    sites=DRAFTED,
    drafters=PARALLEL,
)
def _(pipeline: Pipeline) -> None:
    _turn(pipeline.drafter, lambda rope: replace(rope, fast=rope.fast * 0.9975))


def _config(model: Any, **fields: float) -> None:
    model.config = replace(model.config, **fields)


def _turn(model: Model, change: Callable[[RopeConfig], RopeConfig]) -> None:
    model.turn(change(model.rope))
