"""Verbs that are done whole or not at all, around a device whose own are not."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from parity.adapters.whole_verbs import KINDS, Restore, Snapshot, Transactional
from parity.errors import UsageError
from parity.guard import combined
from parity.seam import Batched, Device


def transactional(
    device: Device,
    state: Sequence[str] = (),
    snapshot: Snapshot | None = None,
    restore: Restore | None = None,
) -> Transactional:
    """The device with verbs that are done whole or not at all.

    Args:
        state: attributes (dotted where they lie deeper) that its verbs change: deep copies are kept of them, one of
            whatever they share. Name them: weights need no copy.
        snapshot, restore: the same by functions of the device's own, for state that cannot be copied so (buffers on an
            accelerator).

    Raises:
        UsageError: neither is given, or both, or an attribute is not there, or the device has lanes: the others have
            gone on where one of them is put back.
    """
    if isinstance(device, Batched):
        raise UsageError("transactional keeps one sequence: a device of lanes has to make its verbs whole itself")
    if bool(state) == (snapshot is not None) or (snapshot is None) != (restore is None):
        raise UsageError("transactional needs the attributes that verbs change, or a snapshot and a restore function")
    if snapshot is None or restore is None:
        snapshot, restore = _copies(device, state)
    offered = tuple(kind for offers, kind in KINDS if isinstance(device, offers))
    made: Transactional = combined(offered or (Transactional,))(device, snapshot, restore)
    return made


def _copies(device: Device, state: Sequence[str]) -> tuple[Snapshot, Restore]:
    for path in state:
        _owner(device, path)

    def snapshot() -> dict[str, Any]:
        return copy.deepcopy({path: getattr(*_owner(device, path)) for path in state})

    def restore(kept: dict[str, Any]) -> None:
        for path, value in copy.deepcopy(kept).items():
            setattr(*_owner(device, path), value)

    return snapshot, restore


def _owner(device: Any, path: str) -> tuple[Any, str]:
    """What holds an attribute, and its name there."""
    *parents, name = path.split(".")
    owner = device
    try:
        for parent in parents:
            owner = getattr(owner, parent)
        getattr(owner, name)
    except AttributeError as error:
        raise UsageError(f"state {path!r} of the device cannot be kept: {error}") from None
    return owner, name
