"""Results of a gate by their verdicts, and a place and bounds for them, made by hand."""

from __future__ import annotations

from types import SimpleNamespace

from parity.compare.report import Place
from parity.gates.gate import Check, GateResult
from parity.gates.rollback.sameness import WithinNoise
from parity.stages import declared

OUT = "target.layers.0.out"
NAMES = declared(2, 1)
WITHIN = WithinNoise(NAMES, "float32", SimpleNamespace(flips=False, flip_bound=lambda stage: 0.0))
PLACE = Place(OUT, 0, 1, 2, 3)


def result(*verdicts: str, name: str = "verify", **more) -> GateResult:
    """A check for each verdict, named n0, n1, …"""
    return GateResult(name, tuple(Check(f"n{n}", verdict, "", **more) for n, verdict in enumerate(verdicts)))
