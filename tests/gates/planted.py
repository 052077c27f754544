"""Plants of verifying and choosing that the catalogue of device/faults does not have, and contexts for any plant."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from parity.builders import builder
from parity.device.pipeline import Pipeline
from parity.gates.context import GateContext
from parity.guard import unguarded

Plant = Callable[[Pipeline], None]
LAYER = 0
"""A sliding-window layer of the tiny target, and of its first layers alone."""


def context_of(golden, tmp_path, plant: Plant = lambda device: None, precision: str = "bfloat16") -> GateContext:
    """A context whose devices all carry this defect."""
    build = builder("numpy", golden)

    def planted(precision: str, **options: int) -> Pipeline:
        device = build(precision=precision, **options)
        inside = unguarded(device)
        for one in getattr(inside, "lanes", [inside]):
            plant(one)
        return device

    return GateContext(golden, "numpy", planted, precision, tmp_path)


def _in_wide_passes(device: Pipeline, change: Callable[[], Callable[[], None]]) -> None:
    """`change` is made, and undone by what it returns, in verify passes of several rows."""
    verify = device.verify

    def wrong(drafts, tap=None):
        undo = change() if len(drafts) else lambda: None
        try:
            return verify(drafts, tap)
        finally:
            undo()

    device.verify = wrong


def window_lost_in_wide_passes(device: Pipeline) -> None:
    """Passes of several rows ignore one sliding window: verify and decode disagree beyond rounding."""
    target, right = device.target, device.target.windows

    def change():
        target.windows = tuple(None if layer == LAYER else window for layer, window in enumerate(right))
        return lambda: setattr(target, "windows", right)

    _in_wide_passes(device, change)


def verify_rotated_one_too_far(device: Pipeline) -> None:
    """Every verify pass, of one row or several, rotates by the position plus one: with and without drafts alike."""
    target, verify, right = device.target, device.verify, device.target.tables
    tables = (np.asarray(target.engine.host(table)) for table in right)
    wrong = tuple(target.engine.array(np.concatenate([table[1:], table[-1:]])) for table in tables)

    def rotated(drafts, tap=None):
        target.tables = wrong
        try:
            return verify(drafts, tap)
        finally:
            target.tables = right

    device.verify = rotated


def last_equal_wins_in_wide_passes(device: Pipeline) -> None:
    """Passes of several rows let the last of equal logits win, as an argmax over ranks may."""
    module = sys.modules[type(device.target).__module__]

    def change():
        right = module.greedy
        module.greedy = _last
        return lambda: setattr(module, "greedy", right)

    _in_wide_passes(device, change)


def _last(logits):
    values = logits.held
    return type(logits)((values.shape[-1] - 1 - values[..., ::-1].argmax(axis=-1)).astype(np.int32), np.dtype(np.int32))


def deaf(device: Pipeline) -> None:
    """Continues with its own tensors, whatever the tap returns."""
    for name in ("prefill", "draft", "verify", "commit"):
        _deafen(device, name)


def _deafen(device: Pipeline, name: str) -> None:
    verb = getattr(device, name)

    def wrong(*arguments):
        *rest, tap = arguments
        return verb(*rest, lambda stage, value: (tap(stage, value.copy()), value)[1])

    setattr(device, name, wrong)
