"""Devices whose caches go wrong in one way each, and no other way shows it: planted outside the kernels."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np

from parity import device
from parity.device.kernels import attention, step
from parity.device.pipeline import Pipeline


def rollback_wrong_axis(**options) -> Pipeline:
    """Rollback clears kv heads where it should clear rejected rows."""
    broken = device.load(**options)
    drafter = broken.drafter

    def rollback(length: int) -> None:
        for cache in (one for pair in drafter.caches for one in pair):
            cache[:, :, -1:] = np.zeros((), np.float32)
        drafter.length = length

    drafter.rollback = rollback
    return broken


def rollback_noop(**options) -> Pipeline:
    """Rejected rows stay in the target's cache: the length is not reset."""
    broken = device.load(**options)
    target, verify, written = broken.target, broken.verify, [0]

    def counting(drafts, tap=None):
        written[0] = len(drafts) + 1
        return verify(drafts, tap)

    broken.verify = counting
    target.rollback = lambda length: setattr(target, "length", target.length + written[0])
    return broken


def rollback_too_far(**options) -> Pipeline:
    """The last accepted row is dropped with the rejected ones."""
    broken = device.load(**options)
    rollback = broken.target.rollback
    broken.target.rollback = lambda length: rollback(length - 1)
    return broken


def rollback_reset(**options) -> Pipeline:
    """The drafter's cache is cleared instead of rolled back."""
    broken = device.load(**options)
    broken.drafter.rollback = lambda length: broken.drafter.clear()
    return broken


def commit_stale_placeholder(**options) -> Pipeline:
    """Rows that a placeholder once wrote keep what it wrote, though they are reported as fed with true hiddens."""
    broken = device.load(**options)
    drafter, forward = broken.drafter, broken.drafter.forward
    behind = [0]

    def stale(taps, first, committed, masked, width, record):
        start, end = drafter.length, min(drafter.length + len(committed), behind[0]) if masked else drafter.length
        kept = [[one.held[0, start:end].copy() for one in pair] for pair in drafter.caches]
        x = forward(taps, first, committed, masked, width, record)
        for pair, rows in zip(drafter.caches, kept, strict=True):
            for one, held in zip(pair, rows, strict=True):
                one.held[0, start:end] = held
        behind[0] = start + len(committed) + masked if masked else 0
        return x

    drafter.forward = stale
    drafter.rollback = lambda length: setattr(drafter, "length", length)
    return broken


def commit_window_ring(**options) -> Pipeline:
    """Window layers live in a ring: a rejected row has overwritten the one a window before it."""
    broken = device.load(**options)
    target, verify, rollback, written = broken.target, broken.verify, broken.target.rollback, [0]

    def counting(drafts, tap=None):
        written[0] = target.length + len(drafts) + 1
        return verify(drafts, tap)

    def ring(length: int) -> None:
        for window, pair in zip(target.windows, target.caches, strict=True):
            for row in range(length, written[0]) if window else ():
                for one in pair if row >= window else ():
                    one.held[0, row - window] = one.held[0, row]
        rollback(length)

    broken.verify, target.rollback = counting, ring
    return broken


def commit_cache_short(**options) -> Pipeline:
    """The drafter's cache has K + 2 rows fewer than the target's; what does not fit lands in its last row."""
    broken = device.load(**options)
    drafter, steps = broken.drafter, broken.drafter.step
    last = drafter.positions - broken.k - 3

    def clamped(rows):
        inside = np.where(rows.slots < drafter.trash, np.minimum(rows.slots, last), rows.slots)
        return steps(replace(rows, slots=inside))

    drafter.step = clamped
    return broken


def boundary_transient_slots(**options) -> Pipeline:
    """Admission forgets the rows of drafts that will be rejected."""
    broken = device.load(**options)
    admit = broken._admit

    def careless(prompt_ids, budget):
        k, broken.k = broken.k, 0
        try:
            return admit(prompt_ids, budget)
        finally:
            broken.k = k

    broken._admit = careless
    return broken


def boundary_padded_rows(**options) -> Pipeline:
    """Draft rows are written as one block, padding included, that is moved back where it would leave the cache."""
    broken = device.load(**options)
    drafter, steps = broken.drafter, broken.drafter.step

    def block(rows):
        if rows.width > 2 * broken.k:
            return steps(rows)
        start = min(int(rows.slots[0, 0]), drafter.positions - rows.width)
        return steps(replace(rows, slots=start + np.arange(rows.width, dtype=np.int32)[None]))

    drafter.step = block
    return broken


def refuses_too_late(**options) -> Pipeline:
    """No admission at all: the sequence is refused when the rows run out."""
    broken = device.load(**options)
    broken._admit = lambda prompt_ids, budget: np.asarray(prompt_ids)
    return broken


def refuses_what_fits(**options) -> Pipeline:
    """Admission wants twice the drafts."""
    broken = device.load(**options)
    admit = broken._admit
    broken._admit = lambda prompt_ids, budget: admit(prompt_ids, budget + broken.k)
    return broken


def error_loses_state(**options) -> Pipeline:
    """A verb that raises puts nothing back."""
    return losing_state(device.load(**options))


def losing_state(broken: Pipeline) -> Pipeline:
    """The same of any pipeline."""
    broken._whole = nullcontext
    return broken


def error_loses_taps(**options) -> Pipeline:
    """Verify stores its taps for the next draft before it has succeeded."""
    broken = device.load(**options)
    choose = broken.target.choose
    forward = broken.target.forward

    def storing(rows, taps, record):
        x, taken = forward(rows, taps, record)
        broken._taps = (taken, 0)
        return x, taken

    broken.target.forward, broken.target.choose = storing, choose
    return broken


def swallows_errors(**options) -> Pipeline:
    """What goes wrong in commit is nobody's business."""
    broken = device.load(**options)
    commit = broken.commit

    def quiet(drafts, tokens, tap):
        try:
            return commit(drafts, tokens, tap)
        except Exception:
            return commit(drafts, tokens)

    broken.commit = quiet
    return broken


def reads_dead_values(**options) -> Pipeline:
    """Dead rows have weight zero, and are read all the same: zero times NaN is NaN."""
    return reading_dead(device.load(**options))


def reading_dead(pipeline: Pipeline) -> Pipeline:
    """The same of any pipeline."""
    return _while_computing(pipeline, attention, "seen_values", lambda values, seen: values)


def mask_off_by_one(**options) -> Pipeline:
    """Every row sees the slot behind its own."""
    visible = step.visible
    return _while_computing(
        device.load(**options), step, "visible", lambda positions, keys, window: visible(positions + 1, keys, window)
    )


def _while_computing(broken: Pipeline, module, name: str, planted) -> Pipeline:
    """The device with another function in a kernel module, put back after each verb."""
    for verb in ("prefill", "draft", "verify"):
        setattr(broken, verb, _patched(getattr(broken, verb), module, name, planted))
    return broken


def _patched(verb, module, name: str, planted):
    def call(*arguments):
        right = getattr(module, name)
        setattr(module, name, planted)
        try:
            return verb(*arguments)
        finally:
            setattr(module, name, right)

    return call


def fails_in(verb: str, **options) -> Pipeline:
    """A verb that reads behind the end of what it holds."""
    broken = device.load(**options)
    setattr(broken, verb, lambda *arguments: [][len(arguments)])
    return broken


def fails_in_verify(**options) -> Pipeline:
    """Verify fails."""
    return fails_in("verify", **options)


def fails_in_draft(**options) -> Pipeline:
    """Draft fails, already where nothing is speculated."""
    return fails_in("draft", **options)


class Unpoisonable:
    """The five verbs and nothing else."""

    def __init__(self, whole: Pipeline) -> None:
        self.describe, self.prefill, self.draft = whole.describe, whole.prefill, whole.draft
        self.verify, self.commit = whole.verify, whole.commit


def unpoisonable(**options) -> Unpoisonable:
    """A device without the optional verb."""
    return Unpoisonable(device.load(**options))


def silent_caches(**options) -> Pipeline:
    """A device that hands over no cache contents."""
    whole = device.load(**options)
    whole._record_caches = lambda record: None
    return whole
