"""What the tests of the positions gate share: its checks by number, and the configs that it is tried on."""

from __future__ import annotations

import json
from pathlib import Path

from parity.gates import run_gate
from parity.gates.context import GateContext

CONFIGS = Path(__file__).parents[2] / "fixtures" / "configs"
SHORT, LONG = 64, 5120
TARGET, DRAFTER, PASSES, REFUSED, COMPARED = range(5)


def shortened(folder: Path, count: int) -> Path:
    """The published parameters over fewer positions, so that a fault costs a moment."""
    for published in CONFIGS.iterdir():
        config = json.loads((published / "config.json").read_text()) | {"max_position_embeddings": count}
        (folder / published.name).mkdir()
        (folder / published.name / "config.json").write_text(json.dumps(config))
    return folder


def judged(context: GateContext) -> list:
    return list(run_gate(context, "positions").checks)
