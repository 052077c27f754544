"""What a run is asked for, and what follows from it for the device and the golden: decided before the device runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from parity.device_fits import Precision, precision_of, refuse_missing_stages, refuse_other_shapes
from parity.errors import UsageError
from parity.golden.case import KeptStages
from parity.golden.fields import Mode
from parity.golden.keeping import Keeping
from parity.golden.smaller import Smaller
from parity.golden.views import DumpView
from parity.grid import Grid, grids
from parity.layers import Layers, within
from parity.progress import Progress, quiet
from parity.seam import Description, Device, Layered, Looping
from parity.shown import ShownRows, View, with_returned
from parity.stages import DRAFTER_LOGITS, TARGET_LOGITS, VERIFY_LOGITS, Named, matches, select
from parity.trace import forced_names


@dataclass(frozen=True)
class RunRequest:
    """One run of a device over a golden.

    `stages` are globs; `free` asks for a free run as well (chained only): without one the run says nothing of it.
    `device_name` is what was given to `--device`, so that the factory's source counts as the device's. `layers` are the
    target's layers that are run alone, one after the other, by a `parity.seam.Layered`; a local run. `smaller` is what
    is kept of its tensors.
    """

    device: Device | Layered
    golden: DumpView
    mode: Mode
    stages: Sequence[str]
    out: Path
    free: bool = True
    progress: Progress = quiet
    device_name: str = ""
    layers: Layers | None = None
    smaller: Smaller = field(default_factory=Smaller)

    def __post_init__(self) -> None:
        if (self.layers is None) == isinstance(self.device, Layered):
            raise ValueError("a parity.seam.Layered runs some layers, any other device runs whole")


@dataclass(frozen=True)
class RunPlan:
    """What is taken down of a device, and how: decided before it runs.

    `forced` are the stages that continue with the golden's value, `ties` those whose ties take its side; `kept` and
    `positions` are what less than whole tensors is kept.
    """

    says: Description
    precision: Precision
    stages: list[Named]
    shown: tuple[ShownRows, ...]
    view: View
    forced: frozenset[str]
    ties: Mapping[str, Grid]
    kept: tuple[KeptStages, ...]
    positions: str
    keeping: Keeping | None


def planned(request: RunRequest) -> RunPlan:
    """Decide all that before the device runs.

    Raises:
        UsageError: the device's shapes are not the golden's, a stage glob matches nothing, or less is kept of a golden
            that has to be kept whole.
    """
    golden, says = request.golden, request.device.describe()
    precision, loop, names = precision_of(says), isinstance(request.device, Looping), golden.declared
    refuse_other_shapes(golden, says, loop)
    wanted = _wanted(request)
    if request.mode == "local" and not request.layers:
        refuse_missing_stages(golden)
    shown = with_returned(says.shown, names, loop)
    view = View(shown, names)
    asked = request.smaller.beside(golden)
    kept = asked.kept()
    less = bool(kept or asked.positions)
    if less:
        _refuse_whole(golden)
    return RunPlan(
        says,
        precision,
        [named for name, named in names.items() if name in wanted],
        shown,
        view,
        forced_of(request.mode, says, view),
        ties_of(golden, says, view, request.mode),
        kept,
        asked.positions,
        Keeping(kept, asked.positions, names) if less else None,
    )


def _wanted(request: RunRequest) -> set[str]:
    """The stages that a run keeps.

    Raises:
        UsageError: a glob matches none, or none of the layers that are run alone.
    """
    golden = request.golden
    wanted = set(within(request.layers, select(request.stages, golden.manifest.stages), golden.declared))
    if request.layers:
        request.layers.refuse_missing(golden)
        if not wanted:
            raise UsageError(f"--stage: none of these stages is of target layers {request.layers}")
    elif golden.manifest.case.sampling:  # what tokens are drawn from judges them
        wanted |= {TARGET_LOGITS, VERIFY_LOGITS, DRAFTER_LOGITS} & {*golden.manifest.stages}
    return wanted


def _refuse_whole(golden: DumpView) -> None:
    """Raises:
    UsageError: of such a golden everything is kept whole.
    """
    case = golden.manifest.case
    if case.sampling or case.kv_cache:
        why = "samples: what tokens are drawn from" if case.sampling else "has quantised caches: what they hold"
        raise UsageError(f"{golden.folder} {why} is kept whole")


def forced_of(mode: Mode, says: Description, view: View) -> frozenset[str]:
    """What is forced of a device: of what it shows, a stage in all layers or in none, so that a run can say it."""
    names = view.declared
    forced = {name for name in forced_names(mode, names) if view.shows(name)}
    free = {names[name].stage.template for name in forced if not any(matches(glob, name) for glob in says.forcible)}
    return frozenset(name for name in forced if names[name].stage.template not in free)


def ties_of(golden: DumpView, says: Description, view: View, mode: Mode = "chained") -> dict[str, Grid]:
    """Of the stages that a device shows, and continues with what comes back of, those whose ties are settled.

    In a chained bfloat16 run ties are no more than noise: the golden's floors have as many.
    """
    if says.precision != "float32" and mode == "chained":
        return {}
    stored = {name: golden.declared[name] for name in golden.manifest.stages if name in golden.declared}
    found = grids(golden.manifest.case, stored, "layers")
    return {
        name: grid
        for name, grid in found.items()
        if view.shows(name) and any(matches(glob, name) for glob in says.forcible)
    }


def truth_of(golden: DumpView, prompt: int) -> Callable[[int, str], np.ndarray | None]:
    return lambda round_, stage: golden.contents("float32", prompt, round_, stage)
