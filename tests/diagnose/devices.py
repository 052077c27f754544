"""Red devices for the diagnosis: two faults at one stage, and an error that nothing known explains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from ml_dtypes import float8_e4m3fn

from parity import device
from parity.device.faults import CATALOGUE
from parity.device.pipeline import Pipeline

HEAD = 3


def two_at_one_stage(target: Path, drafter: Path, k: int, precision: str = "bfloat16") -> Pipeline:
    """Neither sinks nor window."""
    pipeline = device.load(target, drafter, k, precision)
    for fault in ("attn-sinks-missing", "attn-window-missing"):
        CATALOGUE[fault].plant(pipeline)
    return pipeline


class LoudHead:
    """One query head of layer 2 carries noise of half its size."""

    def __init__(self, pipeline: Pipeline):
        self.pipeline = pipeline

    def __getattr__(self, name: str):
        verb = getattr(self.pipeline, name)
        if name not in ("prefill", "verify"):
            return verb
        return lambda *arguments: verb(*arguments[:-1], self._loud(arguments[-1]))

    @staticmethod
    def _loud(tap):
        def loud(stage, value):
            if stage == "target.layers.2.q":
                noise = np.random.default_rng(len(value)).normal(0, 0.5, value[:, HEAD].shape) * np.abs(
                    value[:, HEAD].astype(np.float32)
                )
                value = value.copy()
                value[:, HEAD] = (value[:, HEAD].astype(np.float32) + noise).astype(value.dtype)
            return tap(stage, value)

        return loud


def loud_head(target: Path, drafter: Path, k: int, precision: str = "bfloat16") -> LoudHead:
    """A device with a loud head."""
    return LoudHead(device.load(target, drafter, k, precision))


def other_norms(
    target: Path, drafter: Path, k: int, precision: str = "bfloat16", *, layers: str, of: str = ""
) -> Pipeline:
    """Second norms of these layers, one digit each: by the weight of layer `of`, or by their own in eight bits."""
    pipeline = device.load(target, drafter, k, precision)
    held = pipeline.target.layers
    for layer in map(int, layers):
        norm = held[layer]["post_norm"]
        held[layer]["post_norm"] = held[int(of)]["post_norm"] if of else norm.astype(float8_e4m3fn).astype(norm.dtype)
    return pipeline
