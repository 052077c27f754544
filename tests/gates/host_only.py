"""A port that shows what its verbs return and nothing else: the bundled device, planted or clean, without its taps."""

from __future__ import annotations

from dataclasses import replace

from parity import device
from parity.device.faults import CATALOGUE
from parity.rounds import untapped
from parity.seam import Shown
from parity.shown import RETURNED


class HostOnly:
    def __init__(self, inside) -> None:
        self.inside = inside

    def __getattr__(self, name):
        found = getattr(self.inside, name)
        if name not in VERBS:
            return found
        return lambda *given: found(*(_blind(one) for one in given))

    def describe(self):
        shown = tuple(Shown(stage, rows=rows) for stage, rows in RETURNED.items())
        return replace(self.inside.describe(), shown=shown)


VERBS = {
    f"{verb}{kind}" for verb in ("prefill", "prefill_from", "draft", "verify", "commit") for kind in ("", "_batch")
}


def _blind(argument):
    if isinstance(argument, list) and argument and callable(argument[0]):
        return [untapped] * len(argument)
    return untapped if callable(argument) else argument


def load(target, drafter, k, precision="bfloat16", fault="none", lanes: int = 1):
    """A factory: `tests.gates.host_only:load,fault=life-hit-drafter-unwritten`."""
    make = CATALOGUE[fault].factory if fault != "none" else device.load
    return HostOnly(make(target, drafter, k, precision, **({"lanes": lanes} if lanes > 1 else {})))
