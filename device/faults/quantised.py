"""Faults of quantised caches: their scales, their format, and what passes them by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from parity.device.faults.planting import ALONE, EITHER, PARALLEL, Family, during, instead
from parity.device.kernels.quantised import FORMATS
from parity.device.model import Model
from parity.device.pipeline import Pipeline

FORMAT = "fp8_e4m3"
TARGET, DRAFTER = ("target.layers.*.attn_out", "kv.target.*"), ("drafter.layers.*.attn_out", "kv.drafter.*")
FIRST, DRAFTERS = "target.layers.0.attn_out", "drafter.layers.0.attn_out"
fault = Family("quantised caches", kv_cache=FORMAT, sites=TARGET, drafters=EITHER + ALONE)
drafter = Family("quantised caches", kv_cache=FORMAT, sites=DRAFTER, drafters=EITHER + ALONE, same_text=True)
restored = Family("quantised caches", kv_cache=FORMAT, gate="lifecycle", drafters=PARALLEL)

Rows = Sequence[Any]
Through = Callable[..., Rows]


@fault(
    "kv-scale-k-for-v",
    "values are kept and read by the scale of the keys",
    FIRST,
    precision="float32",
    seen="class of sglang #20705",
)
def _(pipeline: Pipeline) -> None:
    _rescaled(pipeline.target, lambda layer, part: (layer, "k"))


@drafter(
    "kv-scale-k-for-v-drafter",
    "the drafter's values are kept and read by the scale of its keys",
    DRAFTERS,
    precision="float32",
    seen="class of sglang #20705",
)
def _(pipeline: Pipeline) -> None:
    _rescaled(pipeline.drafter, lambda layer, part: (layer, "k"))


@fault(
    "kv-scale-layer-before",
    "every layer's caches have the scales of the layer before",
    "target.layers.1.attn_out",
    seen="class of sglang #20705",
)
def _(pipeline: Pipeline) -> None:
    _rescaled(pipeline.target, lambda layer, part: (max(layer - 1, 0), part))


@drafter(
    "kv-scale-layer-before-drafter",
    "every layer of the drafter has the scales of the layer before",
    "drafter.layers.1.attn_out",
    drafters=PARALLEL,
    seen="class of sglang #20705",
)
def _(pipeline: Pipeline) -> None:
    _rescaled(pipeline.drafter, lambda layer, part: (max(layer - 1, 0), part))


@drafter(
    "kv-scale-target-for-drafter",
    "the drafter's caches have the scales of the target's layers",
    DRAFTERS,
    precision="float32",
    seen="class of vLLM #48787: one setting for both models",
)
def _(pipeline: Pipeline) -> None:
    for mine, its in zip(pipeline.drafter.layers, pipeline.target.layers, strict=False):
        mine |= {name: its[name] for name in ("k_scale", "v_scale")}


@fault(
    "kv-scale-lost",
    "the caches divide and multiply by 1, whatever the checkpoint says",
    FIRST,
    precision="float32",
    seen="sglang #18818",
)
def _(pipeline: Pipeline) -> None:
    for weights in pipeline.target.layers:
        weights |= dict.fromkeys(("k_scale", "v_scale"), pipeline.engine.array(np.ones(1, np.float32), np.float32))


@fault(
    "kv-scale-bfloat16",
    "scales are rounded to bfloat16",
    FIRST,
    precision="float32",
    seen="scales that are loaded as weights are",
)
def _(pipeline: Pipeline) -> None:
    for weights in pipeline.target.layers:
        for name in ("k_scale", "v_scale"):
            rounded = pipeline.engine.host(weights[name]).astype(ml_dtypes.bfloat16).astype(np.float32)
            weights[name] = pipeline.engine.array(rounded, np.float32)


@fault(
    "kv-scale-not-read", "attention reads the numbers of the cache without their scale", FIRST, seen="tokenspeed #759"
)
def _(pipeline: Pipeline) -> None:
    def read(clean: Through) -> Through:
        return lambda caches, weights, kind, like: [one.astype(like.dtype) for one in caches]

    _instead(pipeline, "target_layer", read=read)


@drafter(
    "kv-scale-not-read-drafter",
    "the drafter's attention reads the numbers of its cache without their scale",
    DRAFTERS,
    seen="tokenspeed #759",
)
def _(pipeline: Pipeline) -> None:
    def read(clean: Through) -> Through:
        return lambda caches, weights, kind, like: [one.astype(like.dtype) for one in caches]

    _instead(pipeline, "drafter_layer", read=read)


@fault(
    "kv-scale-read-twice",
    "attention multiplies the values by their scale, and its result once more",
    FIRST,
    seen="class of sglang #20705",
)
def _(pipeline: Pipeline) -> None:
    def read(clean: Through) -> Through:
        def twice(caches: Rows, weights: dict[str, Any], kind: str, like: Any) -> Rows:
            keys, values = clean(caches, weights, kind, like)
            return [keys, (values.astype(np.float32) * weights["v_scale"]).astype(like.dtype)]

        return twice

    _instead(pipeline, "target_layer", read=read)


@fault(
    "kv-scale-direction",
    "keys are multiplied by their scale when they are written, and divided when they are read",
    FIRST,
    precision="float32",
    seen="vllm-xpu-kernels #475",
)
def _(pipeline: Pipeline) -> None:
    for weights in pipeline.target.layers:
        inverse = 1 / pipeline.engine.host(weights["k_scale"])
        weights["k_scale"] = pipeline.engine.array(inverse, np.float32)


@fault(
    "kv-target-unquantised",
    "the target's caches stay in the dtype of the pass",
    FIRST,
    precision="float32",
    seen="class of vLLM #24505",
)
def _(pipeline: Pipeline) -> None:
    _keeping(pipeline.target, pipeline.target.dtype)


@drafter(
    "kv-drafter-unquantised",
    "the drafter's caches stay in the dtype of the pass",
    DRAFTERS,
    precision="float32",
    seen="vLLM #24505, #48787",
)
def _(pipeline: Pipeline) -> None:
    _keeping(pipeline.drafter, pipeline.drafter.dtype)


@fault(
    "kv-other-format", "the caches keep fp8_e5m2", FIRST, seen="kv_cache_dtype=fp8, which names another one elsewhere"
)
def _(pipeline: Pipeline) -> None:
    _keeping(pipeline.target, FORMATS["fp8_e5m2"])


@drafter("kv-other-format-drafter", "the drafter's caches keep fp8_e5m2", DRAFTERS, seen="class of vLLM #24505")
def _(pipeline: Pipeline) -> None:
    _keeping(pipeline.drafter, FORMATS["fp8_e5m2"])


@fault(
    "kv-not-saturated",
    "what is beyond the largest number of the format is none",
    "target.layers.1.attn_out",
    sites=(*TARGET, "target.layers.*.experts"),  # of scores that are no numbers, which an attention made
    seen="vllm-xpu-kernels #475, pytorch #178817",
)
def _(pipeline: Pipeline) -> None:
    def written(clean: Through) -> Through:
        def unlimited(rows: Rows, weights: dict[str, Any], kind: str) -> Rows:
            keys, _ = rows
            return [keys.astype(np.float32) / weights["k_scale"], clean(rows, weights, kind)[1]]

        return unlimited

    _instead(pipeline, "target_layer", written=written)


@drafter(
    "kv-largest-240",
    "the drafter's values are cut off at 240 times their scale, the largest number of another e4m3",
    "drafter.layers.0.attn_out",
    drafters=PARALLEL,
    seen="formats of e4m3 with infinities, and fnuz",
)
def _(pipeline: Pipeline) -> None:
    def written(clean: Through) -> Through:
        def limited(rows: Rows, weights: dict[str, Any], kind: str) -> Rows:
            keys, values = clean(rows, weights, kind)
            return [keys, np.minimum(np.maximum(values, -240.0), 240.0)]

        return limited

    _instead(pipeline, "drafter_layer", written=written)


@fault(
    "kv-cut-off",
    "numbers are cut off towards zero, not rounded to the nearest",
    FIRST,
    seen="conversions that shift the mantissa's bits away",
)
def _(pipeline: Pipeline) -> None:
    _instead(pipeline, "target_layer", written=lambda clean: _cut_off(pipeline, clean))


@drafter(
    "kv-cut-off-drafter",
    "the drafter's numbers are cut off towards zero, not rounded to the nearest",
    DRAFTERS,
    seen="conversions that shift the mantissa's bits away",
)
def _(pipeline: Pipeline) -> None:
    _instead(pipeline, "drafter_layer", written=lambda clean: _cut_off(pipeline, clean))


@fault(
    "kv-own-rows",
    "attention reads the rows of its own pass as they were made, before they are quantised",
    FIRST,
    sites=TARGET[:1],
    precision="float32",
    seen="prefills that attend without the paged cache",
)
def _(pipeline: Pipeline) -> None:
    made: list[Any] = []

    def writing(clean: Any) -> SimpleNamespace:
        def write(cache: Any, rows: Any, slots: Any) -> None:
            made[1:] = [slots]
            clean.write(cache, rows, slots)

        return SimpleNamespace(write=write)

    def written(clean: Through) -> Through:
        def kept(rows: Rows, weights: dict[str, Any], kind: str) -> Rows:
            made[:] = [rows]
            return clean(rows, weights, kind)

        return kept

    def read(clean: Through) -> Through:
        def own(caches: Rows, weights: dict[str, Any], kind: str, like: Any) -> Rows:
            seen = clean(caches, weights, kind, like)
            slots = pipeline.engine.host(made[1])[0]
            real = np.flatnonzero(slots < seen[0].shape[1])
            for one, rows in zip(seen, made[0], strict=True):
                one[:, slots[real]] = rows[:, real]
            return seen

        return own

    during(pipeline, "kernels.target_layer:cache", writing)
    _instead(pipeline, "target_layer", written=written, read=read)


@restored(
    "kv-restored-unscaled",
    "the target's caches are off-loaded as attention reads them, and put back without their scale",
    seen="class of off-loading: the copy has another dtype than the cache",
)
def _(pipeline: Pipeline) -> None:
    target = pipeline.target

    def load(clean: Callable[..., None]) -> Callable[..., None]:
        def put_back(saved: Any) -> None:
            clean(saved)
            for weights, pair in zip(target.layers, target.caches, strict=True):
                for part, one in zip("kv", pair, strict=True):
                    one[:, : target.length] = one[:, : target.length].astype(np.float32) * weights[f"{part}_scale"]

        return put_back

    instead(target, "load", load)


def _rescaled(model: Model, source: Callable[[int, str], tuple[int, str]]) -> None:
    """Each cache with the scale of another one, by layer and part."""
    before = [dict(weights) for weights in model.layers]
    for layer, weights in enumerate(model.layers):
        for part in "kv":
            of, other = source(layer, part)
            weights[f"{part}_scale"] = before[of][f"{other}_scale"]


def _keeping(model: Model, dtype: np.dtype) -> None:
    """Caches of another dtype; in that of the pass there is no scale either."""
    if dtype == model.dtype:
        for weights in model.layers:
            weights |= dict.fromkeys(("k_scale", "v_scale"), model.engine.array(np.ones(1, np.float32), np.float32))
    model.cache_dtype = dtype
    model.clear()


def _instead(pipeline: Pipeline, module: str, **makes: Callable[[Through], Through]) -> None:
    """`make(clean)` stands for these functions of `kernels.quantised` in one of the modules that call them."""

    def stand_in(clean: Any) -> SimpleNamespace:
        functions = {"written": clean.written, "read": clean.read}
        return SimpleNamespace(**functions | {name: make(functions[name]) for name, make in makes.items()})

    during(pipeline, f"kernels.{module}:quantised", stand_in)


def _cut_off(pipeline: Pipeline, clean: Through) -> Through:
    def written(rows: Rows, weights: dict[str, Any], kind: str) -> Rows:
        cut = []
        for one in clean(rows, weights, kind):
            wide = pipeline.engine.host(one).astype(np.float32)
            kept = wide.astype(FORMATS[kind])
            code = kept.view(np.uint8)
            beyond = np.abs(kept.astype(np.float32)) > np.abs(wide)
            cut.append(
                pipeline.engine.array((code - (beyond & (code & 127 > 0))).view(FORMATS[kind]).astype(np.float32))
            )
        return cut

    return written
