"""Faults of choosing: the second best where it is close, whatever the device's own scores say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from parity.device.faults.planting import EITHER, Family, during
from parity.device.pipeline import Pipeline

EXPERTS, TOKENS = 0.05, 0.3
"""Logits: a few units in the last place of bfloat16 at the size that either has in the tiny pair; 1 row of 100."""

fault = Family("choosing", round=None, seen="approximate top-k and sorts on accelerators")


@fault(
    "choose-third-expert",
    "the best of the experts left out chosen instead of the last one where the two are close",
    "target.layers.0.experts",
    sites=("target.layers.*.experts",),
)
def _(pipeline: Pipeline) -> None:
    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def top_k(logits: Any, k: int) -> Any:
            ranked = clean(logits, k + 1)
            scores = np.take_along_axis(logits, ranked, axis=-1).astype(np.float32)
            close = scores[..., k - 1 : k] - scores[..., k:] < EXPERTS
            return np.concatenate(
                [ranked[..., : k - 1], np.where(close, ranked[..., k:], ranked[..., k - 1 : k])], axis=-1
            )

        return top_k

    during(pipeline, "kernels.moe:top_k", make)


@fault(
    "choose-runner-up", "the second token where it is close", "target.tokens", sites=("target.tokens", "verify.tokens")
)
def _(pipeline: Pipeline) -> None:
    during(pipeline, "target:greedy", _runner_up)


@fault(
    "choose-draft-runner-up",
    "the second draft token where it is close",
    "drafter.draft_tokens",
    sites=("drafter.draft_tokens",),
    same_text=True,
    drafters=EITHER,
)
def _(pipeline: Pipeline) -> None:
    during(pipeline, "drafter:greedy", _runner_up)


def _runner_up(clean: Callable[..., Any]) -> Callable[..., Any]:
    def greedy(logits: Any) -> Any:
        best = clean(logits)
        ids = np.arange(logits.shape[-1], dtype=np.int32)
        wide = logits.astype(np.float32)
        left = np.where(ids == best[..., None], -np.inf, wide)
        close = np.max(wide, axis=-1) - np.max(left, axis=-1) < TOKENS
        return np.where(close, clean(left), best)

    return greedy
