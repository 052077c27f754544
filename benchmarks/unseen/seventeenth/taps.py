"""Faults of the taps that the drafter takes, and of their fusion."""

from __future__ import annotations

from benchmarks.unseen.moments import replaced
from benchmarks.unseen.planting import Part
from parity.device.faults.planting import edit
from parity.device.kernels.norm import gpt_oss_norm
from parity.device.pipeline import Pipeline

fault = Part("taps and fuse", 17)
TAPS = "drafter.taps"


@fault(
    "taps-behind-the-next-norm",
    "taps are taken behind the input norm of the layer that follows, not in front of it",
    TAPS,
    "prefill",
    "all three taps, normed",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, streams, taps):
        streams, target = list(streams), pipeline.target
        for of in taps:
            streams[of] = gpt_oss_norm(streams[of], target.layers[of]["input_norm"], target.config.eps)
        return clean(streams, taps)

    replaced(pipeline, pipeline.target, "join", change)


@fault(
    "fc-inputs-hidden-major",
    "fc's weight was loaded for inputs whose three taps lie side by side at each hidden column",
    "drafter.fc_out",
    "prefill",
    "fc weight, order of its inputs",
)
def _(pipeline: Pipeline) -> None:
    edit(pipeline.drafter, "fc", lambda value: value.reshape(96, 3, -1).swapaxes(0, 1).reshape(value.shape))


@fault(
    "taps-not-replaced-behind-rejection",
    "behind a round that accepted nothing the draft takes the taps that the draft before took",
    TAPS,
    "draft",
    "taps, those of the verify pass before",
    "draft passes behind a round that accepted nothing",
    "pass = draft and accepted = 0",
)
def _(pipeline: Pipeline) -> None:
    held = {}

    def change(at, clean, taps, first, *rest):
        if at.kind == "draft":
            before, held["taken"] = held.get("taken"), (taps, first)
            if at.accepted == 0 and before is not None:
                taps, first = before
        return clean(taps, first, *rest)

    replaced(pipeline, pipeline.drafter, "shown_taps", change)


@fault(
    "four-taps-at-most",
    "a draft pass has room for four taps, a fifth committed row has the learnt hidden",
    "drafter.fc_out",
    "draft",
    "fused hidden of the fifth committed row",
    "fifth committed row, behind a round that accepted all 4 drafts",
    "pass = draft and accepted = 4 and row = 4",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, taps, committed):
        return clean(taps, min(committed, 4) if at.kind == "draft" else committed)

    replaced(pipeline, pipeline.drafter, "fused", change)
