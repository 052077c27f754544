"""FLOPs and bytes of a round's phases: the pipeline on shapes, its multiplications summed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from parity.device.assembly import assemble
from parity.device.engines.shape_engine import ShapeEngine
from parity.device.inventory import Blueprint
from parity.device.tally import Tally
from parity.seam import Gemm, Work

PHASES = ("plain", "draft", "verify", "commit")
BYTES = {"bfloat16": 2, "float32": 4}
NO_DRAFTS = np.empty(0, np.int64)


def work(
    target: Path, drafter: Path, k: int, context: int, precision: str, tp: int = 1, moe: str = "masked"
) -> dict[str, Work]:
    """One round behind `context` positions, and one plain step; caches hold no more rows than that takes.

    The round emits one token: what the next one re-feeds does not change what these passes multiply, whose shapes are
    static. Bytes are those of operands and results of the multiplications, in the program's dtype.
    """
    tally = Tally()
    engine = ShapeEngine(tally.multiplied, tally.called, tally.operated)
    rows = context + 2 * k + 4
    pipeline = assemble(target, drafter, k, precision, engine, rows, tp, moe, Blueprint)
    config = pipeline.target.config
    tally.windows = pipeline.target.windows
    engine.answer = token = next(number for number in range(config.vocab) if number not in config.eos)
    tally.phase = "prefill"
    pipeline.prefill([token] * context, k + 2, None)
    tally.phase = "draft"
    drafts = pipeline.draft(None)
    tally.phase = "verify"
    verified = pipeline.verify(drafts, None)
    engine.answer, tally.phase = 1, "commit"
    pipeline.commit(drafts, verified, None)
    engine.answer, tally.phase = token, "plain"
    pipeline.verify(NO_DRAFTS, None)
    return {phase: _sum(tally, phase) for phase in PHASES}


def _sum(tally: Tally, phase: str) -> Work:
    flops = moved = 0.0
    for gemm, places in tally.gemms.items():
        calls = sum(count for place, count in places.items() if place.phase == phase)
        flops += calls * 2.0 * gemm.batch * gemm.m * gemm.k * gemm.n
        moved += calls * _moved(gemm)
    return Work(flops, moved)


def _moved(gemm: Gemm) -> float:
    """Bytes of both operands and of the result."""
    left = gemm.m * gemm.k * (1 if gemm.shared else gemm.batch)
    return float(BYTES[gemm.dtype] * (left + gemm.batch * (gemm.k * gemm.n + gemm.m * gemm.n)))
