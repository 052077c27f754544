"""Faults of sampling in a batch: what a lane samples by is another lane's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from parity.device.batch import Batch
from parity.device.faults.planting import Family, instead
from parity.seam import Sampling

fault = Family("sampling", round=None, gate="sampling", same_text=True, lanes=2, batched=True, sites=())

Settings = Sequence[Sampling | None]
Tables = Sequence[np.ndarray]


@fault(
    "sample-lane-numbers",
    "each lane is decided by its neighbour's random numbers",
    seen="class of per-request generators in a batch that is put together anew",
)
def _(batch: Batch) -> None:
    _given(batch, lambda settings, uniforms: (settings, [*uniforms[1:], *uniforms[:1]]))


@fault(
    "sample-lane-temperature",
    "each lane samples at its neighbour's temperature",
    seen="class of per-request settings in a batch that is put together anew",
)
def _(batch: Batch) -> None:
    def crossed(settings: Settings, uniforms: Tables) -> tuple[Settings, Tables]:
        return [_at_that_of(*pair) for pair in zip(settings, [*settings[1:], *settings[:1]], strict=True)], uniforms

    _given(batch, crossed)


def _at_that_of(own: Sampling | None, other: Sampling | None) -> Sampling | None:
    return own and other and replace(own, temperature=other.temperature)


def _given(batch: Batch, change: Callable[[Settings, Tables], tuple[Settings, Tables]]) -> None:
    """Lanes are given what `change` makes of the settings and the numbers of all of them."""

    def make(clean: Callable[..., Any]) -> Callable[..., Any]:
        def sample_batch(lanes: Sequence[int], settings: Settings, uniforms: Tables) -> None:
            clean(lanes, *change(settings, uniforms))

        return sample_batch

    instead(batch, "sample_batch", make)
