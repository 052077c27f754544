"""Guarding a device: what wraps it, of the kinds that it offers; the device inside; and what it has to describe."""

from __future__ import annotations

from functools import cache
from typing import TypeVar

from parity.errors import UsageError
from parity.guarded_kinds import (
    BatchedGuarded,
    ContinuingGuarded,
    Guarded,
    InspectableGuarded,
    LanesContinueGuarded,
    LanesSaveGuarded,
    LayeredGuarded,
    LoopingGuarded,
    PlainGuarded,
    PoisonableGuarded,
    SavingGuarded,
    SynchronizesGuarded,
)
from parity.limits import LANES
from parity.partly_shown import PartlyShown
from parity.seam import (
    Batched,
    Continuing,
    ContinuingInLanes,
    Description,
    Device,
    Inspectable,
    Layered,
    Looping,
    PlainDecoding,
    Poisonable,
    Saving,
    SavingInLanes,
    Synchronizes,
)
from parity.shown import check_declarations


def guard(device: Device | Layered, name: str) -> Guarded:
    """The device, guarded; `name` is what its errors call it."""
    kinds = (
        (Layered, LayeredGuarded),
        (Looping, LoopingGuarded),
        (Batched, BatchedGuarded),
        (Continuing, ContinuingGuarded),
        (Saving, SavingGuarded),
        (ContinuingInLanes, LanesContinueGuarded),
        (SavingInLanes, LanesSaveGuarded),
        (Poisonable, PoisonableGuarded),
        (PlainDecoding, PlainGuarded),
        (Synchronizes, SynchronizesGuarded),
        (Inspectable, InspectableGuarded),
    )
    offered = tuple(kind for offers, kind in kinds if isinstance(device, offers))
    guarded: Guarded = combined(offered or (Guarded,))(device, name)
    return guarded


T = TypeVar("T")


@cache
def combined(kinds: tuple[type[T], ...]) -> type[T]:
    """The class of a device that offers several things."""
    made: type[T] = kinds[0] if len(kinds) == 1 else type(kinds[-1].__name__, kinds, {})
    return made


def unguarded(device: Device) -> Device:
    """The device inside, for what looks at its class."""
    while isinstance(device, Guarded | PartlyShown):
        device = device.inside
    return device


def check_description(
    says: Description,
    name: str,
    precision: str,
    k: int,
    partial_kv: str = "",
    kv_cache: str = "",
    lanes: int | None = None,
) -> None:
    """What a device was asked for is what it describes; `lanes` where they were.

    Raises:
        UsageError: it is not.
    """
    for what, asked, described in (
        ("precision", precision, says.precision),
        ("K", k, says.k),
        ("partial_kv", partial_kv or "none", says.partial_kv or "none"),
        ("kv_cache", kv_cache or "none", says.kv_cache or "none"),
        ("lanes", says.lanes if lanes is None else lanes, says.lanes),
    ):
        if asked != described:
            raise UsageError(
                f"--device {name} was asked for {what} {asked} and describes itself as {what} {described}: its factory "
                f"has to take {what} as it is asked for, or the command has to ask for {described}"
            )
    if type(says.lanes) is not int or not 1 <= says.lanes <= LANES:
        raise UsageError(
            f"--device {name} describes itself as {says.lanes!r} lanes: a whole number of 1 to {LANES} is due"
        )
    check_declarations(says, name)
