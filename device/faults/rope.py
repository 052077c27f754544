"""Faults of the rotation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from parity.device.faults.planting import EITHER, PARALLEL, Family, during, instead
from parity.device.kernels.rope import frequencies
from parity.device.model import Model
from parity.device.pipeline import Pipeline
from parity.device.rope_config import RopeConfig

Q, QK = "target.layers.0.q", ("target.layers.*.q", "target.layers.*.k")
DRAFT, DRAFTED = "drafter.layers.0.attn_out", ("drafter.layers.*.attn_out", "kv.drafter.*.k")
TARGET, DRAFTER = "kernels.target_layer:rotate", "kernels.drafter_layer:rotate"
fault = Family("rope", sites=QK)
drafter = Family("rope", sites=DRAFTED, same_text=True, drafters=EITHER)


@fault(
    "rope-silent-fallback", "unknown rope type (YaRN) silently becomes the default one", Q, seen="NeMo Automodel #2825"
)
def _(pipeline: Pipeline) -> None:
    _change(pipeline.target, lambda rope: RopeConfig("default", rope.theta))


@fault(
    "rope-key-ignored", "rope_parameters not read: theta 10000 and no scaling", Q, seen="TensorRT-Model-Connect #400"
)
def _(pipeline: Pipeline) -> None:
    _change(pipeline.target, lambda rope: RopeConfig("default", 10000.0))


@fault("rope-theta-llama", "theta of Llama 3 (500000), the scaling right", Q, seen="ports from Llama")
def _(pipeline: Pipeline) -> None:
    _change(pipeline.target, lambda rope: replace(rope, theta=500000.0))


@fault("rope-concentration", "cos and sin not scaled by the YaRN concentration", Q, seen="kekzl/imp #584")
def _(pipeline: Pipeline) -> None:
    _change(pipeline.target, lambda rope: replace(rope, magnitude=1.0))


@fault(
    "rope-concentration-squared",
    "concentration applied to cos and sin and once more to q and k",
    Q,
    seen="ports of YaRN",
)
def _(pipeline: Pipeline) -> None:
    _change(pipeline.target, lambda rope: replace(rope, magnitude=rope.magnitude**2))


@fault("rope-factor", "YaRN factor halved, the concentration right", Q, seen="class of TensorRT-Model-Connect #400")
def _(pipeline: Pipeline) -> None:
    _change(pipeline.target, lambda rope: replace(rope, factor=rope.factor / 2))


@fault(
    "rope-truncated", "YaRN's ramp bounds rounded although truncate is false", Q, seen="gpt-oss against YaRN's default"
)
def _(pipeline: Pipeline) -> None:
    _change(pipeline.target, lambda rope: replace(rope, truncate=True))


@fault("rope-interleaved", "neighbouring elements rotated where halves are meant", Q, seen="class of TRT-LLM #19036")
def _(pipeline: Pipeline) -> None:
    during(pipeline, TARGET, _interleaved)


@fault("rope-position-plus-one", "every row rotated by its position plus one", Q, seen="class of SGLang #25015")
def _(pipeline: Pipeline) -> None:
    _rows(pipeline.target, lambda table: np.concatenate([table[1:], table[-1:]]))


@fault(
    "rope-k-not-rotated",
    "keys cached as they are, queries rotated",
    "target.layers.0.k",
    sites=QK[1:],
    seen="class of mlx-lm cache layouts",
)
def _(pipeline: Pipeline) -> None:
    heads = pipeline.target.config.attention.kv_heads
    during(pipeline, TARGET, lambda clean: lambda x, cos, sin: x if x.shape[2] == heads else clean(x, cos, sin))


@fault("rope-direction", "rotated backwards", Q, seen="ports with another sign of sin")
def _(pipeline: Pipeline) -> None:
    during(pipeline, TARGET, lambda clean: lambda x, cos, sin: clean(x, cos, -sin))


@fault(
    "rope-table-overflow",
    "table as long as the original context: positions behind it stay at its last row",
    Q,
    seen="vLLM #48894, #49343",
)
def _(pipeline: Pipeline) -> None:
    last = pipeline.target.config.attention.rope.original - 1
    _rows(
        pipeline.target,
        lambda table: np.concatenate([table[:last], np.repeat(table[last : last + 1], len(table) - last, 0)]),
    )


@fault("rope-table-bf16", "cos and sin rounded to bfloat16 before use", Q, precision="float32", seen="NKIPy's example")
def _(pipeline: Pipeline) -> None:
    _rows(pipeline.target, lambda table: table.astype(ml_dtypes.bfloat16).astype(np.float32))


@fault(
    "rope-angle-bf16",
    "positions times frequencies in bfloat16: far positions turn wrongly",
    Q,
    seen="class of NKIPy's example",
)
def _(pipeline: Pipeline) -> None:
    def rounded(x: np.ndarray) -> np.ndarray:
        return x.astype(ml_dtypes.bfloat16).astype(np.float64)

    target = pipeline.target
    attention = target.config.attention
    angles = rounded(np.arange(target.positions)[:, None] * rounded(frequencies(attention.rope, attention.head_dim)))
    waves = ((wave(angles) * attention.rope.magnitude).astype(np.float32) for wave in (np.cos, np.sin))
    target.tables = tuple(target.engine.array(one) for one in waves)


@drafter(
    "rope-drafter-fallback",
    "llama3 scaling silently becomes the default RoPE",
    DRAFT,
    seen="NeMo Automodel #2825",
    drafters=PARALLEL,
)
def _(pipeline: Pipeline) -> None:
    _change(pipeline.drafter, lambda rope: RopeConfig("default", rope.theta))


@drafter(
    "rope-drafter-from-target", "the drafter rotates by the target's YaRN", DRAFT, seen="NeMo Automodel's gpt-oss draft"
)
def _(pipeline: Pipeline) -> None:
    pipeline.drafter.turn(pipeline.target.config.attention.rope)


@drafter(
    "rope-drafter-interleaved", "neighbouring elements rotated where halves are meant", DRAFT, seen="TRT-LLM #19036"
)
def _(pipeline: Pipeline) -> None:
    during(pipeline, DRAFTER, _interleaved)


@drafter(
    "rope-drafter-position-plus-one",
    "every row rotated by its position plus one: attention cannot tell, the cache can",
    "kv.drafter.0.k",
    seen="class of SGLang #25015",
)
def _(pipeline: Pipeline) -> None:
    _rows(pipeline.drafter, lambda table: np.concatenate([table[1:], table[-1:]]))


@drafter(
    "rope-length-not-position",
    "rotary counts the rows of the pass and ignores the given positions",
    DRAFT,
    round=1,
    seen="NeMo Automodel #2377",
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def step(rows: Any) -> Any:
            count = np.arange(rows.width)[None]
            waves = (np.take(table, pipeline.drafter.engine.array(count), axis=0) for table in pipeline.drafter.tables)
            return replace(clean(rows), **dict(zip(("cos", "sin"), waves, strict=True)))

        return step

    instead(pipeline.drafter, "step", make)


def _change(model: Model, change: Callable[[RopeConfig], RopeConfig]) -> None:
    model.turn(change(model.rope))


def _rows(model: Model, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Replace both tables, float32 [P, D/2]."""
    engine = model.engine
    cos, sin = (engine.array(change(engine.host(table))) for table in model.tables)
    model.tables = cos, sin


def _interleaved(clean: Callable[..., Any]) -> Callable[..., Any]:
    """Rotates (0, 1), (2, 3), … instead of (0, D/2), (1, D/2 + 1), …"""

    def rotate(x: Any, cos: Any, sin: Any) -> Any:
        half = x.shape[-1] // 2
        order = np.arange(2 * half).reshape(half, 2).T.reshape(-1)
        return clean(x[..., order], cos, sin)[..., np.argsort(order)]

    return rotate
