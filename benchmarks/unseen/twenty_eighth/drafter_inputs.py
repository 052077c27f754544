"""What the drafter is fed: taps, the fused hidden, the learnt hidden of masked rows, embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.unseen.moments import Moment, alter, replaced
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("inputs of the drafter", 28)


@fault(
    "third-tap-taken-before-experts",
    "The third tap is hooked in front of the experts of the layer below it: the stream lacks that layer's MoE output.",
    "drafter.taps",
    "prefill",
    "the third tap, in_of[5], lacks the MoE branch of target layer 4",
)
def _(pipeline: Pipeline) -> None:
    held: dict[str, Any] = {}

    def norm(at: Moment, clean: Any, x: Any, weight: Any, eps: float) -> Any:
        if weight is pipeline.target.layers[4]["post_norm"]:
            held["stream"] = x
        return clean(x, weight, eps)

    def join(at: Moment, clean: Any, streams: list[Any], taps: tuple[int, ...]) -> Any:
        return clean([*streams[:5], held["stream"], *streams[6:]], taps)

    alter(pipeline, "kernels.target_layer:gpt_oss_norm", norm)
    replaced(pipeline, pipeline.target, "join", join)


@fault(
    "verify-taps-reordered",
    "The verify program returns its auxiliary outputs in another order than the prefill's: second and third tap trade.",
    "drafter.taps",
    "draft",
    "the order of the taps of verify passes: the second and the third are swapped",
    "taps that a verify pass made, from the second round on",
    "round >= 2",
)
def _(pipeline: Pipeline) -> None:
    def join(at: Moment, clean: Any, streams: list[Any], taps: tuple[int, ...]) -> Any:
        return clean(streams, (taps[0], taps[2], taps[1]) if at.kind == "verify" else taps)

    replaced(pipeline, pipeline.target, "join", join)


@fault(
    "fc-third-block-is-second",
    "The loader splits fc by tap and stores the second tap's block of rows in the place of the third's too.",
    "drafter.fc_out",
    "prefill",
    "fc rows 192 to 287 are rows 96 to 191",
)
def _(pipeline: Pipeline) -> None:
    def change(fc: np.ndarray) -> np.ndarray:
        return np.concatenate([fc[:192], fc[96:192]])

    rewritten(pipeline, pipeline.drafter.outer, "fc", change)


@fault(
    "masked-hidden-once",
    "The learnt hidden is written to one masked row; those behind it hold the last committed row's taps.",
    "drafter.fc_out",
    "draft",
    "masked rows from the second on fuse the last committed row's taps in the place of mask_hidden",
    "masked rows behind the first one of a draft pass",
)
def _(pipeline: Pipeline) -> None:
    def fuse(at: Moment, clean: Any, taps: Any, mask_hidden: Any, committed: Any, fc: Any) -> Any:
        if at.kind != "draft":
            return clean(taps, mask_hidden, committed, fc)
        rows, count = at.host(taps), int(at.host(committed)[0])
        rows[0, count] = at.host(mask_hidden)[0, 0]
        rows[0, count + 1 :] = rows[0, count - 1]
        return clean(at.array(rows, taps), mask_hidden, at.array(np.array([rows.shape[1]]), committed), fc)

    alter(pipeline, "peagle:fuse", fuse)


@fault(
    "special-embeddings-zero",
    "The drafter's embedding is loaded up to the base vocabulary: special tokens, placeholder too, have zero rows.",
    "drafter.layers.0.attn_out",
    "prefill",
    "embedding rows from id 1264 on are zero in the drafter",
    "rows whose id is a special token, and queries that see them",
)
def _(pipeline: Pipeline) -> None:
    def change(table: np.ndarray) -> np.ndarray:
        table[1264:] = 0
        return table

    rewritten(pipeline, pipeline.drafter.outer, "embed", change)
