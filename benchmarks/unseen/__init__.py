"""Faults of the P-EAGLE pair that no catalogue of the device holds, to see what a diagnosis makes of a new one.

`--device "benchmarks.unseen:device,fault=ID"`, from the repository's root, is the device with one of them.
"""

from __future__ import annotations

from typing import Any

from benchmarks.unseen import (
    accepting,
    attention,
    draft_choice,
    draft_head,
    draft_layers,
    draft_rows,
    drafter_caches,
    embedding,
    experts,
    feeding,
    fifth_attention,
    fifth_caches,
    fifth_draft_attention,
    fifth_experts,
    fifth_head,
    fifth_loop,
    fifth_norms,
    fifth_taps,
    fourth_attention,
    fourth_caches,
    fourth_draft_attention,
    fourth_experts,
    fourth_head,
    fourth_loop,
    fourth_residual,
    fourth_taps,
    fuse,
    head,
    masks,
    norms,
    projections,
    routing,
    second_attention,
    second_caches,
    second_draft_head,
    second_drafter,
    second_experts,
    second_head,
    second_loop,
    second_taps,
    sixth_attention,
    sixth_caches,
    sixth_draft_layers,
    sixth_embedding,
    sixth_experts,
    sixth_head,
    sixth_loop,
    sixth_taps,
    stream,
    taps,
    target_caches,
    third_attention,
    third_caches,
    third_draft_attention,
    third_draft_head,
    third_experts,
    third_head,
    third_loop,
    third_masks,
    third_residual,
    third_routing,
    third_taps,
)
from benchmarks.unseen.planting import Unseen
from parity import device as clean
from parity.device.pipeline import Pipeline
from parity.errors import UsageError

PARTS = (
    projections,
    attention,
    masks,
    experts,
    routing,
    norms,
    stream,
    embedding,
    head,
    taps,
    fuse,
    draft_layers,
    draft_rows,
    draft_head,
    draft_choice,
    target_caches,
    drafter_caches,
    feeding,
    accepting,
    second_attention,
    second_experts,
    second_head,
    second_taps,
    second_drafter,
    second_draft_head,
    second_caches,
    second_loop,
    third_attention,
    third_masks,
    third_draft_attention,
    third_experts,
    third_routing,
    third_residual,
    third_head,
    third_draft_head,
    third_taps,
    third_caches,
    third_loop,
    fourth_attention,
    fourth_draft_attention,
    fourth_experts,
    fourth_residual,
    fourth_head,
    fourth_taps,
    fourth_caches,
    fourth_loop,
    fifth_attention,
    fifth_draft_attention,
    fifth_experts,
    fifth_norms,
    fifth_head,
    fifth_taps,
    fifth_caches,
    fifth_loop,
    sixth_embedding,
    sixth_attention,
    sixth_caches,
    sixth_experts,
    sixth_head,
    sixth_taps,
    sixth_draft_layers,
    sixth_loop,
)
FAULTS: dict[str, Unseen] = {one.id: one for part in PARTS for one in part.fault.faults}


def device(*arguments: Any, fault: str, **options: Any) -> Pipeline:
    """Loads a pair of checkpoints with the fault of this id; takes what `parity.device.load` takes.

    Raises:
        UsageError: there is none of this id, or the device is not one sequence of the synchronous loop.
    """
    if fault not in FAULTS:
        raise UsageError(f"{fault}: no such unseen fault; `python -m benchmarks.unseen --list` names {len(FAULTS)}")
    loaded = clean.load(*arguments, **options)
    if not isinstance(loaded, Pipeline) or loaded.drafter.family != "p-eagle":
        raise UsageError(f"{fault}: it is planted in one P-EAGLE sequence of the synchronous loop.")
    FAULTS[fault].plant(loaded)
    return loaded
