"""Twelfth set: faults of MXFP4's blocks of 32 inputs."""

from __future__ import annotations

import numpy as np

from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("MXFP4 blocks", 12)


def parts(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes [E, blocks, 32, outputs] and scales [E, blocks, outputs] of weights [E, inputs, outputs]."""
    blocks = weight.reshape(len(weight), -1, 32, weight.shape[-1])
    most = np.abs(blocks).max(axis=2)
    scales = np.exp2(np.floor(np.log2(np.where(most > 0, most, 1))))
    return blocks / scales[:, :, None], scales


# After https://github.com/meta-pytorch/MSLK/pull/339: scales without padding, read as if each row had some.
@fault(
    "scales-by-a-padded-stride",
    "the scales of gate and up lie three in a row, and are read by the stride of a padded row, 4; behind the end are "
    "zero bytes",
    "target.layers.0.ffn_out",
    "prefill",
    "block scales of gate and up in every expert: output o has those that lie from 4 o on, outputs from 120 on none",
)
def _(pipeline: Pipeline) -> None:
    def misread(weight):
        codes, scales = parts(weight)
        experts, blocks, outputs = scales.shape
        flat = np.zeros((experts, outputs * (blocks + 1)), scales.dtype)
        flat[:, : outputs * blocks] = scales.swapaxes(1, 2).reshape(experts, -1)
        read = flat.reshape(experts, outputs, blocks + 1)[..., :blocks].swapaxes(1, 2)
        return (codes * read[:, :, None]).reshape(weight.shape)

    for layer in pipeline.target.layers:
        for name in ("gate", "up"):
            rewritten(pipeline, layer, name, misread)


# After https://github.com/hw-native-sys/PTOAS/issues/1060: an offset that is halved twice on its way to bytes.
@fault(
    "codes-from-half-the-offset",
    "the offset of a block of down is halved once more than two numbers a byte ask for; scales are found by their own",
    "target.layers.0.ffn_out",
    "prefill",
    "codes of every expert's down weight: block b has those of inputs 16 b to 16 b + 31, by its own scales",
)
def _(pipeline: Pipeline) -> None:
    def misread(weight):
        codes, scales = parts(weight)
        taken = np.arange(codes.shape[1])[:, None] * 16 + np.arange(32)
        return (codes.reshape(weight.shape)[:, taken] * scales[:, :, None]).reshape(weight.shape)

    for layer in pipeline.target.layers:
        rewritten(pipeline, layer, "down", misread)
