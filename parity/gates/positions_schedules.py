"""The schedules of a pair side by side: whether they are the same, and from which position on it matters if not."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from parity.compare.report import PASS
from parity.gates.positions_passes import SAME
from parity.gates.rope import RopeSchedule, read_schedule, turn
from parity.seam import Side


def compared(own: dict[Side, Path]) -> tuple[str, str, dict[str, Any]]:
    """A report, so never red: a drafter may be trained on another schedule than its target's.

    Raises:
        UsageError: a schedule is not known in full.
    """
    read = {side: read_schedule(folder) for side, folder in own.items()}
    target, drafter = (schedule for schedule, _ in read.values())
    same = (target.kind, target.theta, target.parameters) == (drafter.kind, drafter.theta, drafter.parameters)
    figures: dict[str, Any] = {side: asdict(schedule) for side, (schedule, _) in read.items()} | {"same": same}
    line = f"target {target}, drafter {drafter}: "
    if same:
        return PASS, f"{line}the same", figures
    figures |= departure(target, drafter, min(count for _, count in read.values()))
    return PASS, f"{line}they differ{_departs(figures)}", figures


def departure(target: RopeSchedule, drafter: RopeSchedule, count: int) -> dict[str, int | None]:
    """From which position on the drafter's rotation is not the target's, and from which on that can matter.

    RoPE sees differences of positions alone: both are distances between two rows as well.

    Args:
        count: positions that both have.

    Returns:
        `apart_from`: the first distance at which a pair of the two is turned apart by more than bfloat16's noise, None
        where none is or the heads are not of one size. `matters_from`: the first position at which a slow pair of the
        drafter turns further than it does within the target's original context, so by angles that a drafter trained
        there never saw, while the target's scaling keeps its own within; None where there is none or no scaling.
    """
    found: dict[str, int | None] = {"apart_from": None, "matters_from": None}
    if target.head_dim == drafter.head_dim:
        turned = [turn(one.frequencies(), np.arange(count)) for one in (target, drafter)]
        apart = np.abs(turned[0] - turned[1]).max(axis=-1)
        found["apart_from"] = int(np.argmax(apart > SAME)) if (apart > SAME).any() else None
    if "original_max_position_embeddings" in target.parameters:
        context = target["original_max_position_embeddings"]
        own, kept = drafter.unscaled_until(context), target.unscaled_until(context)
        found["matters_from"] = int(np.ceil(own)) if own < min(kept, count) else None
    return found


def _departs(figures: dict[str, Any]) -> str:
    apart, matters = figures["apart_from"], figures["matters_from"]
    noise = "" if apart is None else f"; apart by more than bfloat16's noise from position {apart:,} on"
    if matters is None:
        return f"{noise}; the drafter's slow pairs stay within the angles of the target's original context as long"
    return (
        f"{noise}; it begins to matter from position {matters:,} on, where the drafter's slow pairs turn beyond the "
        f"angles of the target's original context and the target's do not"
    )
