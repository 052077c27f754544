"""Which caches a device shows, and what is judged of one that hides them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from parity.compare.report import FAIL, NOT_JUDGED, PASS
from parity.errors import Inconclusive
from parity.gates.gate import Check
from parity.seam import Device
from parity.shown import View, stages_of


def cache_stages(device: Device) -> Iterator[str]:
    """Full names of the cache stages of a device of these layers."""
    says = device.describe()
    names = stages_of(says)
    yield from (name for name in names if name.startswith("kv."))


def require_caches(device: Device, tensors: Mapping[str, np.ndarray]) -> None:
    """Refuse to judge caches that should have been shown.

    Raises:
        Inconclusive: a cache stage is missing that the device's description does not leave out.
    """
    hidden = hidden_caches(device)
    missing = [stage for stage in cache_stages(device) if stage not in tensors and stage not in hidden]
    if missing:
        raise Inconclusive(
            f"device {device.describe().name} hands over no {missing[0]} ({len(missing)} cache stages are missing): "
            "give the tap every kv.* stage at the end of prefill and commit"
        )


def hidden_caches(device: Device) -> list[str]:
    """The cache stages that a device's description leaves out."""
    says = device.describe()
    view = View(says.shown, stages_of(says))
    return [stage for stage in cache_stages(device) if not view.shows(stage)]


def as_far_as_shown(checks: Iterable[Check], device: Device) -> Iterator[Check]:
    """Checks of a device's caches: where it hides one, what breaks all the same is a failure, and the rest is not
    judged."""
    hidden = hidden_caches(device)
    for check in checks:
        if not hidden or check.verdict == FAIL:
            yield check
            continue
        many, name = f"({len(hidden)} cache stages are missing)", device.describe().name
        why = f"{name} does not declare {hidden[0]} as shown {many}: what is in its caches is unknown"
        line = f"{why}; in what it shows nothing breaks" if check.verdict == PASS else why
        yield replace(check, verdict=NOT_JUDGED, evidence=line, undeclared=True)
