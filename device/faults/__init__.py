"""Planted faults: each a defect that a real implementation had, put into a loaded pipeline from outside the kernels.

`CATALOGUE` names them; `--device parity.device.faults:ID` (hyphens as underscores) is the device with that defect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parity.device.asynchronous import Asynchronous
from parity.device.batch import Batch
from parity.device.faults import (
    accepting,
    ahead,
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
    quantised,
    ranks,
    rope,
    sampling,
    sampling_lanes,
    shards,
    skips,
    taps,
)
from parity.device.faults.conditional import JOINT, drawn
from parity.device.faults.conditional import only as held_to
from parity.device.faults.planting import Fault
from parity.device.pipeline import Pipeline
from parity.errors import UsageError

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
    quantised.fault,
    quantised.drafter,
    quantised.restored,
    batch.fault,
    lifecycle.fault,
    sampling.fault,
    sampling_lanes.fault,
    ahead.fault,
)
CATALOGUE: dict[str, Fault] = {fault.id: fault for family in _FAMILIES for fault in family.faults}

CONDITIONAL: dict[str, Fault] = {fault.id: fault for fault in drawn([*CATALOGUE.values()], 26, seed=22)}
"""Two faults under each condition, drawn once and for all."""

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


def planted(name: str) -> Fault:
    """The fault of a name: one of the catalogue, or `ID where CONDITION`.

    Raises:
        UsageError: there is none, or it cannot be held to this condition.
    """
    id, joint, where = name.partition(JOINT)
    if id not in CATALOGUE:
        raise UsageError(f"{id}: no such fault; `parity faults list` names {len(CATALOGUE)}")
    return held_to(CATALOGUE[id], where) if joint else CATALOGUE[id]


def only(*arguments: Any, fault: str, where: str, **options: Any) -> Pipeline | Batch | Asynchronous:
    """Loads a pair of checkpoints with a fault under a condition; takes what `parity.device.load` takes.

    Args:
        fault: its id in the catalogue.
        where: the condition, as in `planted`.
    """
    return planted(f"{fault}{JOINT}{where}").factory(*arguments, **options)


def __getattr__(name: str) -> Callable[..., Pipeline | Batch | Asynchronous]:
    found = CATALOGUE.get(name.replace("_", "-"))
    if found is None:
        raise AttributeError(f"no planted fault {name}; `parity faults list` names them")
    return found.factory
