"""How long a command takes, said before it starts: from the rows of the golden, as measured on the tiny pair."""

from __future__ import annotations

from dataclasses import dataclass

from parity.golden.views import DumpView


@dataclass(frozen=True)
class Pace:
    """Seconds of one core, with the NumPy device on the tiny pair.

    Attributes:
        fixed: whatever the golden is.
        row: for every row that the target runs over: the prompts' and K+1 a round.
    """

    fixed: float
    row: float


PACES = {
    "diff": Pace(3, 0.008),
    "run": Pace(2, 0.005),
    "diagnose": Pace(15, 0.008),
    "engines": Pace(10, 0.1),
    "gate": Pace(200, 0.03),
}
"""Rough: fitted to goldens of 2 prompts (285 rows) and 24 (5,451 rows), of `gate` partly on a busy machine."""

SHORT = 20.0
"""Seconds that nobody has to be told of."""


def target_rows(golden: DumpView) -> int:
    """Rows that the target runs over in a golden: prompts, and K+1 for every verify round."""
    case = golden.manifest.case
    rounds = sum(len(prompt.generation.acceptance_length) for prompt in case.prompts if prompt.generation)
    return sum(len(prompt.ids) for prompt in case.prompts) + rounds * (case.k + 1)


def estimate(verb: str, golden: DumpView, device: str) -> str:
    """A sentence: how long a command takes, and on what; '' for what is over at once."""
    pace, rows = PACES[verb], target_rows(golden)
    seconds = pace.fixed + pace.row * rows
    if seconds < SHORT:
        return ""
    told = f"{round(seconds, -1):.0f} seconds" if seconds < 100 else f"{seconds / 60:.0f} minutes"
    own = "" if device == "numpy" else f"; {device}, or a larger pair, sets its own pace"
    prompts = len(golden.manifest.case.prompts)
    what = f"{verb}: {prompts} prompt{'s' * (prompts > 1)}, {rows:,} rows"
    return f"{what}: about {told} with the NumPy device and the tiny pair on one idle core{own}"
