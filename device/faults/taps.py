"""Faults of the taps and of their fusion: the text stays, acceptance drops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from parity.device.faults.planting import EITHER, PARALLEL, Family, during, edit, instead
from parity.device.kernels.norm import gpt_oss_norm, normalise
from parity.device.pipeline import Pipeline

TAPS, FUSED, FUSE = "drafter.taps", "drafter.fc_out", "peagle:fuse"
fault = Family("taps", same_text=True, drafters=EITHER)


@fault(
    "tap-off-by-one",
    "in_of layer numbers read as out_of: every tap one layer late",
    TAPS,
    seen="NKIPy PR 63, SGLang #25454",
)
def _(pipeline: Pipeline) -> None:
    _numbers(pipeline, lambda taps: [tap + 1 for tap in taps])


@fault("tap-early", "every tap one layer early", TAPS, seen="NKIPy PR 63, SGLang #25454")
def _(pipeline: Pipeline) -> None:
    _numbers(pipeline, lambda taps: [tap - 1 for tap in taps])


@fault("tap-one-wrong", "the middle tap one layer late, the others right", TAPS, seen="class of tokenspeed #526")
def _(pipeline: Pipeline) -> None:
    _numbers(pipeline, lambda taps: [taps[0], taps[1] + 1, *taps[2:]])


@fault("tap-order", "taps concatenated from the last to the first", TAPS, seen="class of vLLM's sorted aux ids")
def _(pipeline: Pipeline) -> None:
    _numbers(pipeline, lambda taps: taps[::-1])


@fault(
    "tap-last-only",
    "the last layer's stream in every place, as for a drafter with one tap",
    TAPS,
    seen="class of tokenspeed #526",
)
def _(pipeline: Pipeline) -> None:
    _numbers(pipeline, lambda taps: [pipeline.target.config.layers] * len(taps))


@fault("tap-after-norm", "taps taken behind the final norm", TAPS, seen="SGLang #32334")
def _(pipeline: Pipeline) -> None:
    target = pipeline.target

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        return lambda streams, taps: clean(
            [gpt_oss_norm(one, target.outer["norm"], target.config.eps) for one in streams], taps
        )

    instead(target, "join", make)


@fault("tap-without-residual", "taps taken from the layer's branch, the residual not added", TAPS, seen="TRT-LLM #6199")
def _(pipeline: Pipeline) -> None:
    branches: list[Any] = []

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def target_layer(x: Any, *rest: Any) -> Any:
            *others, tap = rest

            def watch(part: str, value: Any) -> Any:
                value = tap(part, value)
                branches.extend([value] if part == "ffn_out" else [])
                return value

            return clean(x, *others, watch)

        return target_layer

    def join(clean: Callable[..., Any]) -> Callable[..., Any]:
        def run(streams: list[Any], taps: tuple[int, ...]) -> Any:
            joined = clean([streams[0], *branches[1 - len(streams) :]], taps)
            branches.clear()
            return joined

        return run

    during(pipeline, "target:target_layer", make)
    instead(pipeline.target, "join", join)


@fault("tap-stale", "taps of the round before", TAPS, round=2, seen="class of SGLang #25015")
def _(pipeline: Pipeline) -> None:
    kept: list[tuple[Any, int]] = []

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def forward(taps: Any, first: int, committed: np.ndarray, masked: int, *rest: Any) -> Any:
            stale = kept[0] if masked and kept else (taps, first)
            kept[:] = [(taps, first)] if masked else []
            return clean(*stale, committed, masked, *rest)

        return forward

    instead(pipeline.drafter, "forward", make)


@fault(
    "tap-rejected-rows",
    "taps of the last verify rows, not of the accepted ones",
    TAPS,
    round=None,
    seen="class of NKIPy PR 63",
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def forward(taps: Any, first: int, committed: np.ndarray, *rest: Any) -> Any:
            rows = taps.shape[1]
            return clean(taps, rows - len(committed) if rows <= pipeline.k + 1 else first, committed, *rest)

        return forward

    instead(pipeline.drafter, "forward", make)


@fault(
    "fuse-mask-hidden-zero",
    "mask_hidden missing from the checkpoint: zeros",
    FUSED,
    round=1,
    seen="NeMo Automodel #2376",
    drafters=PARALLEL,
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "mask_hidden", np.zeros_like)


@fault(
    "fuse-mask-bypasses-fc",
    "mask_hidden's first H numbers used without passing through fc",
    FUSED,
    round=1,
    seen="ports of P-EAGLE",
    drafters=PARALLEL,
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def fuse(taps: Any, mask_hidden: Any, committed: Any, fc: Any) -> Any:
            row = np.arange(taps.shape[1], dtype=np.int32)
            own = (row < committed[:, None])[:, :, None]
            return np.where(own, clean(taps, mask_hidden, committed, fc), mask_hidden[:, :, : fc.shape[1]])

        return fuse

    during(pipeline, FUSE, make)


@fault(
    "fuse-mask-one-late",
    "the first masked row takes the hidden behind the last committed one",
    FUSED,
    round=1,
    seen="class of NKIPy PR 63",
    drafters=PARALLEL,
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        return lambda taps, mask_hidden, committed, fc: clean(taps, mask_hidden, committed + 1, fc)

    during(pipeline, FUSE, make)


@fault(
    "fuse-norm-added",
    "a norm before fc that the config does not ask for",
    FUSED,
    seen="SGLang #32334, tokenspeed #751",
    drafters=PARALLEL,
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        return lambda taps, *rest: clean(normalise(taps, 1e-5).astype(taps.dtype), *rest)

    during(pipeline, FUSE, make)


@fault("fuse-chunk-missing", "the first tap's chunk not in the sum of fc", FUSED, seen="class of TTrace's shard faults")
def _(pipeline: Pipeline) -> None:
    chunk = pipeline.target.config.hidden
    edit(pipeline.drafter, "fc", lambda weight: np.concatenate([0 * weight[:chunk], weight[chunk:]]))


def _numbers(pipeline: Pipeline, change: Callable[[list[int]], list[int]]) -> None:
    config = pipeline.drafter.config
    pipeline.drafter.config = replace(config, taps=tuple(change(list(config.taps))))
