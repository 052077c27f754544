"""Faults of loading: the right checkpoint, read wrongly."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from parity.device.faults.planting import EITHER, Family, edit, every
from parity.device.pipeline import Pipeline

FFN, FIRST = ("target.layers.*.ffn_out",), "target.layers.0.ffn_out"
HEADS = ("target.logits", "verify.logits")
fault = Family("loading")


@fault(
    "load-gate-up-interleaved",
    "gate and up left interleaved on the output axis, and cut in the middle",
    FIRST,
    sites=FFN,
    seen="loaders of gpt-oss checkpoints",
)
def _(pipeline: Pipeline) -> None:
    _split(pipeline, lambda full: np.array_split(full, 2, axis=-1))


@fault(
    "load-gate-up-swapped",
    "odd outputs taken as the gate, even ones as up",
    FIRST,
    sites=FFN,
    seen="loaders of gpt-oss checkpoints",
)
def _(pipeline: Pipeline) -> None:
    _split(pipeline, lambda full: (full[..., 1::2], full[..., 0::2]))


def _split(pipeline: Pipeline, cut: Callable[[np.ndarray], Sequence[np.ndarray]]) -> None:
    """Put gate and up together as they lie on disk, and cut them apart by `cut`."""
    target = pipeline.target
    for weights in target.layers:
        for part in ("", "_bias"):
            pair = [target.engine.host(weights[name + part]).astype(np.float32) for name in ("gate", "up")]
            full = np.stack(pair, axis=-1).reshape(*pair[0].shape[:-1], -1)
            for name, half in zip(("gate", "up"), cut(full), strict=True):
                weights[name + part] = target.engine.array(np.ascontiguousarray(half), target.dtype)


@fault(
    "load-mxfp4-nibbles",
    "high nibble of an MXFP4 byte taken first: neighbouring inputs swapped",
    FIRST,
    sites=FFN,
    seen="loaders of gpt-oss checkpoints",
)
def _(pipeline: Pipeline) -> None:
    def swap(weight: np.ndarray) -> np.ndarray:
        return weight[:, np.arange(weight.shape[1]) ^ 1]

    edit(pipeline.target, "gate up down", swap, every(pipeline.target))


@fault(
    "load-mxfp4-scale",
    "MXFP4 exponents one too large: expert weights doubled",
    FIRST,
    sites=FFN,
    seen="loaders of gpt-oss checkpoints",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "gate up down", lambda weight: weight * 2, every(pipeline.target))


@fault(
    "load-scales-past-end",
    "MXFP4: the scale of the last expert's last block is read behind the end, as a zero byte: the block vanishes",
    FIRST,
    sites=FFN,
    seen="sglang#36456: scales read past K = 2880",
)
def _(pipeline: Pipeline) -> None:
    def without(weight: np.ndarray) -> np.ndarray:
        weight = weight.copy()
        weight[-1, -32:] = 0
        return weight

    edit(pipeline.target, "down", without, every(pipeline.target))


@fault(
    "load-square-transpose",
    "down_proj read in its other memory order, its shape unchanged",
    FIRST,
    sites=FFN,
    seen="loaders of gpt-oss checkpoints",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "down", lambda weight: weight.swapaxes(1, 2).reshape(weight.shape), every(pipeline.target))


@fault(
    "load-experts-swapped",
    "layer 3: the down projections of experts 0 and 1 exchanged",
    "target.layers.3.ffn_out",
    seen="class of TTrace's shard faults",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "down down_bias", lambda weight: weight[[1, 0, *range(2, len(weight))]], [3])


@fault(
    "load-gate-bias-halves",
    "gate and up weights de-interleaved, their biases not",
    FIRST,
    sites=FFN,
    seen="loaders of gpt-oss checkpoints",
)
def _(pipeline: Pipeline) -> None:
    target = pipeline.target
    for weights in target.layers:
        pair = [target.engine.host(weights[name]).astype(np.float32) for name in ("gate_bias", "up_bias")]
        halves = np.array_split(np.stack(pair, axis=-1).reshape(len(pair[0]), -1), 2, axis=-1)
        for name, half in zip(("gate_bias", "up_bias"), halves, strict=True):
            weights[name] = target.engine.array(half.copy(), target.dtype)


@fault("load-tied-head", "head tied to the embedding although untied", HEADS[0], sites=HEADS, seen="SpecForge #140")
def _(pipeline: Pipeline) -> None:
    pipeline.target.outer["head"] = pipeline.target.outer["embed"].transpose(1, 0)


@fault("load-embed-scaled", "embeddings multiplied by sqrt(H), as Gemma's are", "target.embed", seen="ports from Gemma")
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "embed", lambda weight: weight * np.sqrt(weight.shape[1]))


@fault(
    "load-norm-weight",
    "layer 2: input norm's weight missing from the checkpoint, left at one",
    "target.layers.2.attn_in",
    seen="class of SGLang #27908",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "input_norm", np.ones_like, [2])


@fault("load-final-norm", "final norm's weight left at one", "target.pre_head_hidden", seen="class of SGLang #27908")
def _(pipeline: Pipeline) -> None:
    edit(pipeline.target, "norm", np.ones_like)


@fault(
    "load-head-random",
    "drafter head missing from the checkpoint, left at random",
    "drafter.logits",
    round=1,
    same_text=True,
    seen="SGLang #27908",
    drafters=EITHER,
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "head", _random)


@fault(
    "load-embed-random",
    "drafter embedding left at random",
    "drafter.layers.0.attn_out",
    sites=("drafter.layers.0.attn_out", "kv.drafter.0.*"),
    same_text=True,
    seen="TorchSpec #38",
    drafters=EITHER,
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "embed", _random)


@fault(
    "load-embed-target",
    "drafter embedding overwritten by the target's",
    "drafter.layers.0.attn_out",
    sites=("drafter.layers.0.attn_out", "kv.drafter.0.*"),
    same_text=True,
    seen="vLLM #27737",
)
def _(pipeline: Pipeline) -> None:
    pipeline.drafter.outer["embed"] = pipeline.target.outer["embed"]


@fault(
    "load-fc-chunks",
    "fc's input chunks in another order than the taps",
    "drafter.fc_out",
    same_text=True,
    seen="class of vLLM's sorted aux ids",
    drafters=EITHER,
)
def _(pipeline: Pipeline) -> None:
    edit(
        pipeline.drafter,
        "fc",
        lambda weight: np.roll(weight.reshape(3, -1, weight.shape[1]), 1, axis=0).reshape(weight.shape),
    )


@fault(
    "load-drafter-layers-swapped",
    "drafter layers 1 and 2 exchanged",
    "drafter.layers.1.attn_out",
    sites=("drafter.layers.[12].*_out", "kv.drafter.[12].*"),
    same_text=True,
    seen="class of NeMo-RL #2802",
)
def _(pipeline: Pipeline) -> None:
    layers = pipeline.drafter.layers
    layers[1], layers[2] = layers[2], layers[1]


@fault(
    "load-drafter-noise",
    "0.3 % noise on the drafter's weights",
    "drafter.fc_out",
    sites=("drafter.fc_out", "drafter.layers.*", "drafter.pre_head_hidden", "drafter.logits", "kv.drafter.*"),
    precision="float32",
    same_text=True,
    seen="checkpoints converted through a narrower dtype",
    drafters=EITHER,
)
def _(pipeline: Pipeline) -> None:
    noise = np.random.default_rng(0)

    def shaken(weight: np.ndarray) -> np.ndarray:
        return (
            weight * (1 + 0.003 * noise.normal(size=weight.shape)).astype(np.float32)
            if weight.dtype.kind == "f"
            else weight
        )

    drafter = pipeline.drafter
    edit(drafter, " ".join(drafter.outer), shaken)
    for layer in every(drafter):
        edit(drafter, " ".join(drafter.layers[layer]), shaken, [layer])


def _random(weight: np.ndarray) -> np.ndarray:
    """The usual initialisation: normal, 0.02."""
    return np.random.default_rng(0).normal(0.0, 0.02, weight.shape).astype(np.float32)
