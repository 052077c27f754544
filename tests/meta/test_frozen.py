"""What the core hands from one room to another cannot be changed on its way."""

import importlib
import pkgutil
from dataclasses import is_dataclass

CORE = ("compare", "gates", "metrics", "golden", "policy")

CHANGES = {
    "compare.sampling.judging.Replayed",
    "gates.beside.Neighbour",
    "gates.boundary.BoundaryOutcomes",
    "gates.clean.GateCalibration",
    "gates.context.GateContext",
    "gates.decisions.PlantedTies",
    "gates.difference.Difference",
    "gates.golden_tokens.TextResult",
    "gates.lifecycle_cases.Lives",
    "gates.loops.SideBySide",
    "gates.lossless.AlignedRun",
    "gates.lossless_golden_text.GoldenTextResult",
    "gates.lossless_loop.LoopTexts",
    "gates.positions_passes.OneTokenTap",
    "gates.rollback.explore.Exploration",
    "gates.rollback.invariants.Coverage",
    "gates.rollback.invariants.SequenceState",
    "gates.rollback.repeat.RecordedPlay",
    "gates.sampling.counts.Counts",
    "gates.verify_agreement.Agreement",
    "golden.writer._Shard",
    "metrics.sums.Partial",
}
"""Dataclasses that collect something while they live."""


def _core():
    for room in CORE:
        module = importlib.import_module(f"parity.{room}")
        yield module
        for info in pkgutil.walk_packages(getattr(module, "__path__", []), f"parity.{room}."):
            yield importlib.import_module(info.name)


def test_every_dataclass_of_the_core_is_frozen():
    changed = {
        f"{module.__name__}.{name}".removeprefix("parity.")
        for module in _core()
        for name, held in vars(module).items()
        if is_dataclass(held) and held.__module__ == module.__name__ and not held.__dataclass_params__.frozen
    }
    assert changed == CHANGES
