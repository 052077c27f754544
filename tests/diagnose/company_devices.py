"""Devices that are right for a sequence alone on a fresh device, and wrong behind or beside others."""

from __future__ import annotations

from functools import partial

from parity import device
from tests.gates.batch_defects import Wrapped

STAGE = "target.layers.1.attn_out"


class Remembers:
    """From the second prefill on a stage is a tenth too large."""

    def __init__(self, inside):
        self.inside, self.prefills = inside, 0

    def __getattr__(self, name):
        return getattr(self.inside, name)

    def describe(self):
        return self.inside.describe()

    def prefill(self, ids, budget, tap):
        self.prefills += 1
        return self.inside.prefill(ids, budget, self.changed(tap))

    def draft(self, tap, *k):
        return self.inside.draft(tap, *k)

    def verify(self, drafts, tap):
        return self.inside.verify(drafts, self.changed(tap))

    def commit(self, *given):
        return self.inside.commit(*given)

    def changed(self, tap):
        return partial(_larger, tap) if self.prefills > 1 else tap


class Second(Remembers):
    """In the second sequence, where it is another one than the first, a stage is a tenth too large."""

    def __init__(self, inside):
        super().__init__(inside)
        self.prompts = []

    def prefill(self, ids, budget, tap):
        self.prompts.append(list(ids))
        return super().prefill(ids, budget, tap)

    def changed(self, tap):
        wrong = len(self.prompts) == 2 and self.prompts[0] != self.prompts[1]
        return partial(_larger, tap) if wrong else tap


class Keeps(Remembers):
    """The last rows of a stage of the first prefill stay in its buffer, where later prefills find them."""

    kept = None

    def changed(self, tap):
        return partial(self._stale, tap)

    def _stale(self, tap, stage, value):
        if stage != STAGE:
            return tap(stage, value)
        if self.kept is None:
            self.kept = value[-4:].copy()
        elif len(value) > 8:
            value = value.copy()
            value[-4:] = self.kept
        return tap(stage, value)


class Beside(Wrapped):
    """In bfloat16 a stage is a tenth too large in verify passes of several sequences; the gate asks in float32."""

    def verify_batch(self, lanes, drafts, taps):
        wrong = len(lanes) > 1 and self.describe().precision == "bfloat16"
        return self.inside.verify_batch(lanes, drafts, [partial(_larger, tap) for tap in taps] if wrong else taps)


def _larger(tap, stage, value):
    return tap(stage, value * value.dtype.type(1.1) if stage == STAGE else value)


def remembers(target, drafter, k, precision="bfloat16"):
    return Remembers(device.load(target, drafter, k, precision))


def keeps(target, drafter, k, precision="bfloat16"):
    return Keeps(device.load(target, drafter, k, precision))


def second(target, drafter, k, precision="bfloat16"):
    return Second(device.load(target, drafter, k, precision))


def beside(target, drafter, k, precision="bfloat16", lanes: int = 2):
    return Beside(device.load(target, drafter, k, precision, lanes=lanes))
