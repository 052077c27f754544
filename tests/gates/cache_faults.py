"""Devices whose caches go wrong, fail or say nothing in a way that the catalogue of device/faults does not have."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np

from parity import device
from parity.device.kernels import attention
from parity.device.pipeline import Pipeline


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


def drafts_one_fewer(**options) -> Pipeline:
    """The last draft of a round is shown and not handed over."""
    broken = device.load(**options)
    draft = broken.draft
    broken.draft = lambda *asked: draft(*asked)[:-1]
    return broken


def error_loses_state(**options) -> Pipeline:
    """A verb that raises puts nothing back."""
    return losing_state(device.load(**options))


def losing_state(broken: Pipeline) -> Pipeline:
    """The same of any pipeline."""
    broken.whole = nullcontext
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
