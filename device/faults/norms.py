"""Faults of norms and head of the target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from parity.device.faults.planting import Family, during
from parity.device.kernels.norm import llama_norm
from parity.device.pipeline import Pipeline

IN = "target.layers.0.attn_in"
SITES = (
    "target.layers.*.attn_in",
    "target.layers.*.router_logits",
    "target.layers.*.ffn_out",
    "target.pre_head_hidden",
)
fault = Family("norms", sites=SITES)


@fault(
    "norm-cast-first", "cast before the weight multiplies (Llama's order)", IN, chained="", seen="gpt-oss against Llama"
)
def _(pipeline: Pipeline) -> None:
    _norms(pipeline, lambda clean: llama_norm)


@fault("norm-eps", "eps of 1e-2 where 1e-5 is meant", IN, seen="configs whose eps key is not read")
def _(pipeline: Pipeline) -> None:
    pipeline.target.config = replace(pipeline.target.config, eps=1e-2)


@fault("norm-mean-subtracted", "LayerNorm instead of RMSNorm", IN, seen="ports from GPT-2")
def _(pipeline: Pipeline) -> None:
    _norms(pipeline, lambda clean: lambda x, weight, eps: clean(x - np.mean(x, axis=-1, keepdims=True), weight, eps))


@fault("norm-weight-plus-one", "weight + 1, as Gemma's norms have", IN, seen="ports from Gemma")
def _(pipeline: Pipeline) -> None:
    _norms(pipeline, lambda clean: lambda x, weight, eps: clean(x, weight.astype(np.float32) + 1.0, eps))


@fault(
    "norm-final-skipped",
    "head applied to the residual stream, no final norm",
    "target.pre_head_hidden",
    sites=("target.pre_head_hidden",),
    seen="class of SpecForge #879",
)
def _(pipeline: Pipeline) -> None:
    during(pipeline, "target:gpt_oss_norm", lambda clean: lambda x, weight, eps: x)


@fault(
    "norm-final-twice",
    "final norm applied twice",
    "target.pre_head_hidden",
    sites=("target.pre_head_hidden",),
    seen="class of SGLang #32334",
)
def _(pipeline: Pipeline) -> None:
    during(
        pipeline, "target:gpt_oss_norm", lambda clean: lambda x, weight, eps: clean(clean(x, weight, eps), weight, eps)
    )


@fault(
    "head-softcap",
    "logits capped by 30 tanh(x / 30), as Gemma's are",
    "target.logits",
    sites=("target.logits", "verify.logits"),
    seen="ports from Gemma",
)
def _(pipeline: Pipeline) -> None:
    during(
        pipeline, "target:linear", lambda clean: lambda *rest: np.tanh(clean(*rest).astype(np.float32) / 30.0) * 30.0
    )


def _norms(pipeline: Pipeline, make: Callable[[Any], Any]) -> None:
    """Every norm of the target."""
    during(pipeline, "kernels.target_layer:gpt_oss_norm", make)
    during(pipeline, "target:gpt_oss_norm", make)
