"""Seventh set: faults of norms."""

from __future__ import annotations

from benchmarks.unseen.moments import alter
from benchmarks.unseen.planting import Part
from parity.device.pipeline import Pipeline

fault = Part("norms", 7)


# After https://github.com/vllm-project/vllm-ascend/pull/5012
@fault(
    "grid-ends-at-96-rows",
    "layer 6's input norm is launched for 96 rows at the most, and later ones find what the norm before left there",
    "target.layers.6.attn_in",
    "prefill",
    "layer 6's input norm: its rows are those of layer 5's post-attention norm",
    "prefill rows from 96 on, layer 6",
    "pass = prefill and row >= 96 and layer = 6",
)
def _(pipeline: Pipeline) -> None:
    layers, buffer = pipeline.target.layers, {}

    def change(at, clean, x, weight, eps):
        made = clean(x, weight, eps)
        if weight is layers[5]["post_norm"]:
            buffer["rows"] = at.host(made)

        def stop(rows):
            rows[:, 96:] = buffer["rows"][:, 96:]
            return rows

        late = weight is layers[6]["input_norm"] and at.kind == "prefill"
        return at.changed(made, stop) if late else made

    alter(pipeline, "kernels.target_layer:gpt_oss_norm", change)


# After https://github.com/ROCm/aiter/issues/5044
@fault(
    "store-runs-into-the-next-row",
    "the drafter's final norm stores a column too many, the last one again, and it lies on the next row's first",
    "drafter.pre_head_hidden",
    "draft",
    "column 0 of the drafter's final norm: column 95 of the row before",
    "all drafts of a round but the first",
)
def _(pipeline: Pipeline) -> None:
    def change(at, clean, *given):
        def spill(rows):
            rows[:, 1:, 0] = rows[:, :-1, -1]
            return rows

        return at.changed(clean(*given), spill)

    alter(pipeline, "drafter:llama_norm", change)


# From the equations: a drafter that borrows the target's head, as the first of them do, borrows its norm with it.
@fault(
    "final-norm-of-the-target",
    "the drafter's final norm has the weight of the target's, its head is its own",
    "drafter.pre_head_hidden",
    "draft",
    "weight of the drafter's final norm",
)
def _(pipeline: Pipeline) -> None:
    pipeline.drafter.outer["norm"] = pipeline.target.outer["norm"]
