"""Faults of the P-EAGLE pair that no catalogue of the device holds, to see what a diagnosis makes of a new one.

`--device "benchmarks.unseen:device,fault=ID"`, from the repository's root, is the device with one of them.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from benchmarks.unseen.planting import Part, Unseen
from parity import device as clean
from parity.device.pipeline import Pipeline
from parity.errors import UsageError

SETS = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
    "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth",
    "twentieth", "twenty_first", "twenty_second", "twenty_third", "twenty_fourth", "twenty_fifth", "twenty_sixth",
    "twenty_seventh", "twenty_eighth",
)  # fmt: skip
"""Their rooms, in the order in which they were written."""


def _parts() -> list[Part]:
    """What each file of each set enters."""
    rooms = (import_module(f"{__name__}.{of}") for of in SETS)
    files = [f"{room.__name__}.{file.name}" for room in rooms for file in iter_modules(room.__path__)]
    return [import_module(file).fault for file in files]


PARTS = _parts()
FAULTS: dict[str, Unseen] = {one.id: one for part in PARTS for one in part.faults}


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
