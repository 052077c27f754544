"""Devices for goldens that sample: the bundled one with a planted fault of sampling, and ones that are no use there."""

from __future__ import annotations

from dataclasses import replace

from parity import device
from parity.device.faults.sampling import fault as planted


def load(target, drafter, k, precision, fault: str):
    """The bundled device with this fault."""
    made = device.load(target, drafter, k, precision)
    next(one for one in planted.faults if one.id == fault).plant(made)
    return made


def saying(target, drafter, k, precision, samples: bool = True, own: bool = False):
    """The bundled device that describes its sampling in another way."""
    made = device.load(target, drafter, k, precision)
    says = replace(made.describe(), samples=samples, own_numbers=own)
    made.describe = lambda: says
    return made


def greedy_in_service(target, drafter, k, precision):
    """The bundled device, which draws by its numbers only where somebody looks."""
    made = device.load(target, drafter, k, precision)
    sample, prefill, told = made.sample, made.prefill, []

    def sampling(settings, uniforms):
        told[:] = [settings, uniforms]
        sample(settings, uniforms)

    def prefilled(ids, budget, tap=None):
        sample(None if getattr(tap, "unwatched", False) else told[0], told[1])
        return prefill(ids, budget, tap)

    made.sample, made.prefill = sampling, prefilled
    return made
