"""Devices that choose or pair wrongly in a way that the catalogue of device/faults does not have: factories."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from parity import device
from parity.device.pipeline import Pipeline
from parity.device.recorder import Recorder
from parity.seam import RowTap, Tap
from tests.gates import planted


class Noting:
    """A tap that tells `note(layer, part, value)` what the device continues with."""

    def __init__(self, tap, note: Callable, layer: int | None = None):
        self.tap, self.note, self.layer = tap, note, layer

    def __call__(self, part, value):
        back = self.tap(part, value)
        self.note(self.layer, part, back)
        return back

    def at(self, layer: int) -> Noting:
        return Noting(self.tap.at(layer), self.note, layer)

    def of(self, group: str) -> Noting:
        return Noting(self.tap.of(group), self.note, self.layer)


class Choosing:
    """A recorder under which tokens come from the logits of the pass by `choose(logits [R, V], ids [R])`."""

    def __init__(self, record: Recorder, engine, choose: Callable):
        self.record, self.engine, self.choose = record, engine, choose

    def bind(self, group: str, rows: int, layer: int | None = None):
        def note(_layer, part, value):
            if part == "logits":
                self.logits = self.engine.host(value)[0, :rows].astype(np.float32)

        return Noting(self.record.bind(group, rows, layer), note, layer)

    def ids(self, group: str, part: str, value, rows: int) -> np.ndarray:
        return self.record.exact(group, part, self.choose(self.logits, self.engine.host(value)[0, :rows]))


def choosing(choose: Callable, side: str = "target") -> Callable[..., Pipeline]:
    """A device whose target or drafter chooses its tokens so."""

    def load(**options) -> Pipeline:
        broken = device.load(**options)
        model = getattr(broken, side)
        honest = model.choose
        model.choose = lambda *rest: honest(*rest[:-1], Choosing(rest[-1], model.engine, choose))
        return broken

    return load


def last_of_maxima(logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The highest of equal maxima."""
    return logits.shape[1] - 1 - logits[:, ::-1].argmax(axis=1)


def tenth(logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The first row's tenth best id, the others' best."""
    return np.where(np.arange(len(ids)) == 0, np.argsort(-logits, axis=1)[:, 9], ids)


tenth_best = choosing(tenth)


def drafter_last_equal_wins(**options) -> Pipeline:
    """The drafter's highest column wins a tie."""
    broken = device.load(**options)
    offsets = np.asarray(broken.drafter.outer["d2t"])

    def choose(logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
        columns = last_of_maxima(logits, ids)
        return columns + offsets[columns]

    honest = broken.drafter.choose
    broken.drafter.choose = lambda *rest: honest(*rest[:-1], Choosing(rest[-1], broken.drafter.engine, choose))
    return broken


def columns_rolled(**options) -> Pipeline:
    """The target's head with its columns one off: tokens agree with its own logits, and are wrong."""
    broken = device.load(**options)
    outer = broken.target.outer
    head = broken.target.engine.host(outer["head"])
    outer["head"] = broken.target.engine.array(np.roll(head, 1, axis=-1), broken.target.dtype)
    return broken


def deaf(**options) -> Pipeline:
    """Shows its stages and goes on with its own values."""
    broken = device.load(**options)
    planted.deaf(broken)
    return broken


def late_after_an_accept(**options) -> Pipeline:
    """Taps are one row late, in rounds behind one that accepted a draft alone."""
    broken = device.load(**options)
    forward = broken.drafter.forward

    def late(taps, first, committed, masked, *rest):
        return forward(taps, first + bool(masked and len(committed) > 1), committed, masked, *rest)

    broken.drafter.forward = late
    return broken


class RowByRow:
    """A tap for a device that drafts step by step: rows of drafter stages go one by one to a tap that takes rows."""

    def __init__(self, tap: Tap):
        self.tap = tap

    def __call__(self, stage: str, value: np.ndarray) -> np.ndarray:
        if not (isinstance(self.tap, RowTap) and stage.startswith("drafter.")):
            return self.tap(stage, value)
        return np.concatenate(
            [self.tap.rows(stage, value[row : row + 1], row, len(value)) for row in range(len(value))]
        )


def step_by_step(**options) -> Pipeline:
    """Nothing is wrong: it drafts as the documentation of `RowTap` says."""
    stepping = device.load(**options)
    draft = stepping.draft
    stepping.draft = lambda tap=None: draft(tap and RowByRow(tap))
    return stepping
