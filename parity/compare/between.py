"""One device held against another on a golden: where the two part, in the golden's x noise.

The golden lends its tokens, its values and its noise floors; what is judged is the difference of the two devices,
by the same policy. A stage's difference is laid on the golden, so that an error that both devices share
cancels out: whether either is right is what a comparison with the golden says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from parity.compare import comparable, compare
from parity.compare.flow import DISGUISED
from parity.compare.report import Report
from parity.errors import UsageError
from parity.golden.manifest import TensorRow, Variant
from parity.golden.store import Dump
from parity.policy import Policy


class Difference(Dump):
    """A run as it would be, were the other run the golden.

    A numeric stage is the golden plus what parts the two runs. A row of an exact stage is the golden's where the two
    agree, and elsewhere the row of the two that is not the golden's.

    Raises:
        UsageError: the two runs differ in mode or precision, or one is none over this golden.
    """

    def __init__(self, golden: Dump, run: Dump, other: Dump):
        _comparable(golden, run, other)
        self.golden, self.run, self.other = golden, run, other
        self.folder, self.declared, self.parts = run.folder, run.declared, run.parts
        prompts = tuple(prompt.model_copy(update={"generation": None}) for prompt in run.manifest.case.prompts)
        case = run.manifest.case.model_copy(update={"prompts": prompts})
        names = f"{run.manifest.producer.name} against {other.manifest.producer.name}"
        producer = run.manifest.producer.model_copy(update={"name": names})
        self.manifest = run.manifest.model_copy(update={"case": case, "producer": producer})
        self.rows = {place: _both(row, other.rows[place]) for place, row in run.rows.items() if place in other.rows}

    @property
    def sides(self) -> tuple[Dump, ...]:
        """Both runs."""
        return self.run, self.other

    @property
    def command(self) -> str:
        """How a command names the two runs."""
        return f"{self.folder} --against {self.other.folder}"

    def stored(self, variant: Variant, prompt: int, round_: int, stage: str) -> np.ndarray | None:
        """The rows that changed in either run since the round before."""
        whole = self.contents(variant, prompt, round_, stage)
        return None if whole is None else whole[self.rows[variant, prompt, round_, stage].start :]

    def contents(self, variant: Variant, prompt: int, round_: int, stage: str) -> np.ndarray | None:
        """The whole tensor; None unless all three have it in one shape."""
        place = prompt, round_, stage
        true = self.golden.contents("float32", *place)
        mine, theirs = (dump.contents(variant, *place) for dump in (self.run, self.other))
        if any(side is None for side in (true, mine, theirs)) or not true.shape == mine.shape == theirs.shape:
            return mine
        if not self.declared[stage].stage.exact:
            return true.astype(np.float32) + (mine.astype(np.float32) - theirs.astype(np.float32))
        agree, right = (_alike(*pair) for pair in ((mine, theirs), (mine, true)))
        return np.where(agree, true, np.where(right, theirs, mine))


def compare_devices(
    golden: Dump, difference: Difference, policy: Policy, globs: Sequence[str] = (), strict: bool = False
) -> Report:
    """Judge what parts two devices, as `compare` judges a device."""
    found = compare(golden, difference, policy.between_devices(), globs, strict)
    # Two devices may differ by nothing: a difference is not too precise.
    stages = (replace(one, marks=tuple(mark for mark in one.marks if mark != DISGUISED)) for one in found.stages)
    return replace(found, stages=tuple(stages))


def _comparable(golden: Dump, run: Dump, other: Dump) -> None:
    comparable(golden, other)
    for what in ("mode", "precision"):
        ours, theirs = getattr(run.manifest.case, what), getattr(other.manifest.case, what)
        if ours != theirs:
            raise UsageError(f"{run.folder} is {ours}, {other.folder} is {theirs}: two devices are compared in one {what}")


def _both(row: TensorRow, other: TensorRow) -> TensorRow:
    """Of a cache stage, the rows that changed in either run."""
    start = min(row.start, other.start)
    return row.model_copy(update={"start": start, "shape": (row.shape[0] + row.start - start, *row.shape[1:])})


def _alike(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Which rows are the same, shaped to choose between rows."""
    same = (one == other).reshape(len(one), -1).all(axis=1)
    return same.reshape(-1, *[1] * (one.ndim - 1))
