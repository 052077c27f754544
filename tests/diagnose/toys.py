"""References and hypotheses of the made-up worlds: a reference replays the golden, a hypothesis multiplies a stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import ml_dtypes
import numpy as np

from parity.diagnose import Diagnosis, diagnose
from parity.diagnose.clock import SearchClock
from parity.diagnose.failing_run import FailingRun, failing_run
from parity.diagnose.trials import PromptTrials
from parity.golden.store import Dump
from parity.policy import read_policy
from tests.meta.dumps import Pair, write

POLICY = read_policy(None, "bfloat16")


class Skipped(Exception):
    """A hypothesis has nothing to change."""

    skip = True


@dataclass(frozen=True)
class Toy:
    """`change(value, round, rows)` of the stage, one of the catalogue's rows in small."""

    id: str
    stage: str
    change: Callable = field(compare=False)
    values: tuple = ()
    fit: object = None
    infer: object = None
    layered: bool = False
    cost: int = 1
    passes: str = ""
    part: str = ""
    fix: str = "the toy box"
    seen: tuple[str, ...] = ()

    @property
    def stages(self) -> tuple[str, ...]:
        """Where it can show."""
        return (self.stage,)

    def describe(self, value: object) -> str:
        """In words."""
        return f"{self.id} {value}"


@dataclass
class Replay:
    """A reference that hands over the golden's tensors, changed by what is assumed, rounded in bfloat16."""

    golden: Dump
    precision: str

    def products(self, stage, ids, budget, recorder, rounds=None, hidden=()):
        """None: its stages come of no weights."""
        return ()

    def run(self, assumed, ids, budget, recorder, rounds=None):
        """One prompt."""
        prompts = [one.ids for one in self.golden.manifest.case.prompts]
        number = prompts.index(tuple(ids))
        for variant, prompt, round_, stage in sorted(self.golden.rows, key=lambda place: place[2]):
            if (
                variant != "float32"
                or prompt != number
                or stage not in self.golden.declared
                or round_ > (round_ if rounds is None else rounds)
            ):
                continue
            value = self.golden.contents(variant, prompt, round_, stage)
            for one, what in assumed:
                value = one.change(what, round_, value) if stage == one.stage else value
            if self.precision == "bfloat16" and value.dtype == np.float32:
                value = value.astype(ml_dtypes.bfloat16).astype(np.float32)
            recorder.begin(round_)
            recorder(stage, value)


def compared(pair: Pair, folder: Path) -> tuple[Dump, Dump, object]:
    """A pair on disk, and what a diagnosis makes of their comparison: red, inconclusive or nothing."""
    golden, run = write(pair, folder)
    return golden, run, failing_run(golden, run, POLICY)


def explained(red: FailingRun, hypotheses=(), clock: SearchClock | None = None) -> Diagnosis:
    """The diagnosis of a red pair."""
    trials = PromptTrials(red.golden, red.run, red.number, POLICY, lambda precision: Replay(red.golden, precision))
    trials.clock = trials.counterfactuals.clock = clock or trials.clock
    return diagnose(trials, hypotheses, red.first, red.residuals())


def scaled(name: str, stage: str, *values: float, rounds: int = 0) -> Toy:
    """The stage is V times what it should be, from a round on."""
    return Toy(name, stage, lambda value, round_, x: (x * np.float32(value)) if round_ >= rounds else x, values)
