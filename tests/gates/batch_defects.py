"""Batched devices with a defect that nothing in the catalogue has: the bundled one, wrapped."""

from __future__ import annotations

from functools import partial

import numpy as np

from parity import device
from parity.device.batch import Batch


class Wrapped:
    """The bundled batch, as it is."""

    def __init__(self, inside: Batch) -> None:
        self.inside = inside
        self.longest = 0

    def __getattr__(self, name):
        return getattr(self.inside, name)

    def describe(self):
        return self.inside.describe()

    def prefill_batch(self, *given):
        return self.inside.prefill_batch(*given)

    def draft_batch(self, *given):
        return self.inside.draft_batch(*given)

    def verify_batch(self, *given):
        return self.inside.verify_batch(*given)

    def commit_batch(self, *given):
        return self.inside.commit_batch(*given)

    def forget(self, lane, rows):
        """Overwrite some rows of a lane's target cache."""
        target = self.inside.lanes[lane].target
        for one in (one for pair in target.caches for one in pair):
            one[:, rows] = target.engine.array(np.zeros((1, 1, 1, 1), np.float32), target.dtype)

    def beside(self, lanes):
        """Lanes with a sequence that are not among these."""
        return [lane for lane, each in enumerate(self.inside.lanes) if each.target.length and lane not in lanes]


class EndsAll(Wrapped):
    """An end token in one lane cuts what all lanes emit."""

    def commit_batch(self, *given):
        emitted = self.inside.commit_batch(*given)
        ended = any(int(each[-1]) in self.describe().eos for each in emitted)
        return [each[:1] for each in emitted] if ended else emitted


class Parting(Wrapped):
    """Once the last lane's sequence has ended, the first two draft from each other's taps."""

    def draft_batch(self, lanes, *given):
        first, second, *_, last = self.inside.lanes
        if not (len(last._text) and last.finished and {0, 1} <= {*lanes}):
            return self.inside.draft_batch(lanes, *given)
        first._taps, second._taps = second._taps, first._taps
        try:
            return self.inside.draft_batch(lanes, *given)
        finally:
            first._taps, second._taps = second._taps, first._taps


class ForgetsWaiting(Wrapped):
    """A lane that is not named in a verify pass loses its last row."""

    def verify_batch(self, lanes, *given):
        for lane in self.beside(lanes):
            length = self.inside.lanes[lane].target.length
            self.forget(lane, slice(length - 1, length))
        return self.inside.verify_batch(lanes, *given)


class Ragged(Wrapped):
    """Lanes with fewer drafts than the longest are shown, and go on, 5 % too large."""

    def verify_batch(self, lanes, drafts, taps):
        most = max(map(len, drafts))
        large = [partial(_larger, tap) if len(own) < most else tap for own, tap in zip(drafts, taps, strict=True)]
        return self.inside.verify_batch(lanes, drafts, large)


class Grows(Wrapped):
    """A prompt longer than any before makes the caches grow: what runs beside it loses its first row."""

    def prefill_batch(self, lanes, prompts, *given):
        most = max(map(len, prompts))
        for lane in self.beside(lanes) if 0 < self.longest < most else ():
            self.forget(lane, slice(0, 1))
        self.longest = max(self.longest, most)
        return self.inside.prefill_batch(lanes, prompts, *given)


class HalfDone(Wrapped):
    """A verb that raises in one lane is done in the others."""

    def commit_batch(self, lanes, drafts, verified, taps):
        verb = [
            partial(self.inside.lanes[lane].commit, *given)
            for lane, *given in zip(lanes, drafts, verified, taps, strict=True)
        ]
        return self.inside._lockstep.run(verb)


class Races(Wrapped):
    """The last lane's first stage is off in its last bits, another time by others."""

    def verify_batch(self, lanes, drafts, taps):
        return self.inside.verify_batch(lanes, drafts, [*taps[:-1], partial(_shaken, taps[-1])])


def _larger(tap, stage, value):
    return tap(stage, value * value.dtype.type(1.05) if stage == "target.layers.1.out" else value)


def _shaken(tap, stage, value):
    noise = 1 + 1e-6 * np.random.default_rng().standard_normal(value.shape)
    return tap(stage, (value * noise).astype(value.dtype) if stage == "target.layers.1.out" else value)


DEFECTS = {kind.__name__: kind for kind in (Wrapped, EndsAll, Parting, ForgetsWaiting, Ragged, Grows, HalfDone, Races)}


def load(target, drafter, k, precision="bfloat16", defect="", lanes: int = 3):
    """A factory: `tests.gates.batch_defects:load,defect=EndsAll`."""
    return DEFECTS[defect](device.load(target, drafter, k, precision, lanes=lanes))
