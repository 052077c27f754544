"""Planted faults: each a defect that a real implementation had, put into a loaded pipeline from outside the kernels.

`CATALOGUE` names them; `--device parity.device.faults:ID` (hyphens as underscores) is the device with that defect.
"""

from __future__ import annotations

from collections.abc import Callable

from parity.device.batch import Batch
from parity.device.faults import (
    accepting,
    attention,
    batch,
    block,
    caches,
    chain,
    changing,
    choosing,
    constants,
    draft_model,
    drafting,
    experts,
    inputs,
    lifecycle,
    loading,
    lookup,
    masks,
    norms,
    pages,
    ranks,
    rope,
    sampling,
    sampling_lanes,
    shards,
    skips,
    taps,
)
from parity.device.faults.planting import Fault
from parity.device.pipeline import Pipeline

_FAMILIES = (
    loading.fault,
    rope.fault,
    rope.drafter,
    attention.fault,
    attention.drafter,
    masks.fault,
    masks.drafter,
    experts.fault,
    norms.fault,
    taps.fault,
    inputs.fault,
    drafting.fault,
    drafting.d2t,
    accepting.verify,
    accepting.accept,
    accepting.report,
    caches.fault,
    caches.commit,
    caches.boundary,
    ranks.reduced,
    shards.fault,
    ranks.choice,
    ranks.cached,
    constants.fault,
    constants.drafter,
    choosing.fault,
    skips.fault,
    chain.fault,
    changing.fault,
    draft_model.fault,
    lookup.fault,
    block.fault,
    pages.fault,
    batch.fault,
    lifecycle.fault,
    sampling.fault,
    sampling_lanes.fault,
)
CATALOGUE: dict[str, Fault] = {fault.id: fault for family in _FAMILIES for fault in family.faults}

LEFT_OUT = {
    "tap-config-ignored": "the tiny drafter's tap list is the default one; tap-one-wrong and tap-early stand for it",
    "input-raw-prompt": "the device is given token ids; "
    "the golden's prompt digest and the case identity hold the template",
    "commit-window-ring": "sliding-window layers keep all rows, there is no ring",
    "capture-aliased": "the tap is handed copies: nothing can change what was captured",
    "tree faults": "there is one device, without a tree",
    "expert-parallel faults": "ranks share out every expert's intermediate, not the experts; "
    "the ffn-shard faults emulate it",
}
"""Known faults without a place in this device, and why."""


def __getattr__(name: str) -> Callable[..., Pipeline | Batch]:
    found = CATALOGUE.get(name.replace("_", "-"))
    if found is None:
        raise AttributeError(f"no planted fault {name}; `parity faults list` names them")
    return found.factory
