"""A clean device whose sums come in another order each time, as with atomics; and the same with a defect planted."""

from __future__ import annotations

import numpy as np

from parity.device.engines.reordered import Order
from parity.device.pipeline import Pipeline
from parity.device.variants import Variant
from tests.gates import cache_faults


def restless(after: int = 0, **options) -> Pipeline:
    """Every sum is taken in a random order, behind so many prefills."""
    random, prefills = np.random.default_rng(0), [0]
    device = Variant(
        Order(lambda count: random.permutation(count) if prefills[0] > after else np.arange(count)), name="restless"
    )(**options)
    prefill = device.prefill

    def counted(*arguments):
        prefills[0] += 1
        return prefill(*arguments)

    device.prefill = counted
    return device


def late(**options) -> Pipeline:
    """The first repetitions happen to be alike."""
    return restless(after=6, **options)


def error_loses_state(**options) -> Pipeline:
    """A verb that raises puts nothing back."""
    return cache_faults.losing_state(restless(**options))


def reads_dead_values(**options) -> Pipeline:
    """Dead rows have weight zero, and are read all the same."""
    return cache_faults.reading_dead(restless(**options))


def wild(**options) -> Pipeline:
    """One query of the target's second layer is half as large every other time it is asked."""
    device, count = restless(**options), iter(range(10**9))
    prefill = device.prefill

    def halved(ids, budget, tap):
        factor = 0.5 if next(count) % 2 else 1.0
        return prefill(
            ids,
            budget,
            lambda stage, x: tap(stage, (x * factor).astype(x.dtype) if stage == "target.layers.1.q" else x),
        )

    device.prefill = halved
    return device
