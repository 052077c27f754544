"""Shrinking a failing case: the shortest prompt, the fewest rounds and the smallest K that still fail alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from parity.builders import device as build_device
from parity.compare import compare
from parity.compare.basis import Rerun
from parity.compare.report import FAIL, Place, Report
from parity.diagnose.failing_run import FailingRun, failures, find_failing_run
from parity.diagnose.ranks import RankMismatch, rank_causes
from parity.drive import run_device
from parity.errors import Inconclusive, ParityError, UsageError
from parity.golden.fields import Mode
from parity.golden.store import Dump
from parity.golden.trust import trusted
from parity.golden.views import GoldenSlice, TrustedGolden
from parity.oracles import ReferenceRerun
from parity.policy import Policy, read_policy
from parity.producers import dump_golden, is_plain
from parity.progress import quiet
from parity.run_request import RunRequest
from parity.seam import Device

if TYPE_CHECKING:
    from parity.isolation import ProcessLimits

SLACK = 2
"""Rounds more than the failing one that a shorter prompt may take to fail: it accepts other drafts."""


@dataclass(frozen=True)
class Shrunk:
    """A case that fails: its prompt, K (of each round in turn, where it changes) and the first round that shows it.

    `first` is where.
    """

    ids: tuple[int, ...]
    k: int
    round: int
    first: Place
    schedule: tuple[int, ...] = ()

    @property
    def ks(self) -> tuple[int, ...]:
        """K of each round in turn."""
        return self.schedule or (self.k,)


@dataclass
class Reducer:
    """Shrinks one failure of one device.

    Args:
        golden: where it fails.
        build: makes the device for a golden: `build(golden)`.
        dump: makes a golden of one prompt: `dump(ids, ks, budget, name)`, `ks` K of each round in turn.
        mode: local or chained.
        policy: the bounds.
        folder: for runs.
        rerun: as for `parity.compare.compare`.
        told: called with one line about every case tried.
    """

    golden: TrustedGolden
    build: Callable[[TrustedGolden], Device]
    dump: Callable[[Sequence[int], Sequence[int], int, str], TrustedGolden]
    mode: Mode
    policy: Policy
    folder: Path
    rerun: Rerun
    told: Callable[[str], None] = lambda line: None
    tried: int = 0

    def reduce(self, first: Place) -> Shrunk:
        """The smallest case found that fails at the same stage of the dataflow.

        Args:
            first: where the device fails over the golden.

        Raises:
            Inconclusive: no prompt alone fails there.
        """
        self.family = self.golden.declared[first.stage].stage.template
        best = self._shorter(self._prompt(first))
        for k in range(1, best.k + bool(best.schedule)):
            smaller = self._again(replace(best, k=k, schedule=()), best)
            if smaller:
                return smaller
        return best

    def write(self, case: Shrunk) -> TrustedGolden:
        """The case as a golden of its own, its budget what the failing round ends with."""
        long = self._golden(case)
        lengths = long.manifest.case.prompts[0].generated.acceptance_length[: case.round]
        return self.dump(case.ids, case.ks, 1 + sum(lengths), "reduced")

    def _prompt(self, first: Place) -> Shrunk:
        """The golden's shortest prompt that fails alone, by the round in which the failure is known."""
        case = self.golden.manifest.case
        prompts = case.prompts
        for number in sorted(range(len(prompts)), key=lambda number: len(prompts[number].ids)):
            place = self._fails(GoldenSlice(self.golden, number, first.round))
            if place is not None:
                return Shrunk(prompts[number].ids, case.k, place.round, place, case.schedule)
        where = f"{first.stage}, prompt {first.prompt}, round {first.round}"
        raise Inconclusive(
            f"nothing to reduce, and no pass: the device fails at {where}, and every prompt alone passes there on a "
            "fresh device: it depends on what ran before, or does not repeat itself; parity diagnose asks which"
        )

    def _shorter(self, case: Shrunk) -> Shrunk:
        """Prefixes: twice as long each time until one fails, then by bisection between it and the one before."""
        low, high, best = 1, 2, case
        while high < len(case.ids) and best is case:
            best = self._again(replace(case, ids=case.ids[:high]), case) or case
            low, high = (low, high) if best is not case else (high, 2 * high)
        high = len(best.ids)
        while high - low > 1:
            middle = (low + high) // 2
            shorter = self._again(replace(case, ids=case.ids[:middle]), case)
            low, high, best = (low, middle, shorter) if shorter else (middle, high, best)
        return best

    def _again(self, case: Shrunk, known: Shrunk) -> Shrunk | None:
        """The case if it fails, with its own failing round."""
        rounds = known.round + SLACK if known.round else 0
        golden = GoldenSlice(self._golden(replace(case, round=rounds)), 0, rounds)
        try:
            place = self._fails(golden)
            said = "fails" if place else "passes"
        except ParityError as error:  # a device need not take every prompt and K: such a case fails in another way
            place, said = None, str(error)
        self.told(f"{len(case.ids)} tokens, K = {','.join(map(str, case.ks))}: {said}")
        return replace(case, round=place.round, first=place) if place else None

    def _golden(self, case: Shrunk) -> TrustedGolden:
        self.tried += 1
        budget = 1 + (case.round + 1) * (case.k + 1) if case.round else 1
        return self.dump(case.ids, case.ks, budget, f"case-{self.tried}")

    def _fails(self, golden: TrustedGolden) -> Place | None:
        """Where the device fails on this golden, if at the same kind of stage."""
        self.tried += 1
        out = self.folder / f"run-{self.tried}"
        request = RunRequest(self.build(golden), golden, self.mode, (), out)
        report = compare(golden, Dump(run_device(request)), self.policy, rerun=self.rerun)
        if report.verdict != FAIL or report.first is None:
            return None
        return report.first if golden.declared[report.first.stage].stage.template == self.family else None


class Reduced(NamedTuple):
    """The smallest failing case, its golden, and the mode that shows it."""

    case: Shrunk
    golden: TrustedGolden
    mode: Mode


def reduced(
    golden: TrustedGolden,
    device: str,
    precision: str,
    policy: str | None,
    threads: int,
    out: Path,
    folder: Path,
    told: Callable[[str], None],
    limits: ProcessLimits | None = None,
) -> Reduced | None:
    """Where a device fails, as small as it gets; see `parity.api.reduce_failure`.

    Args:
        out: takes the golden of the case; `folder` what is tried.
    """
    bounds = read_policy(policy, precision)
    rerun = ReferenceRerun()
    red = find_failing_run(golden, build_device(device, golden, precision, limits), bounds, folder, quiet, rerun=rerun)
    if red is None:
        return None
    if not isinstance(red, FailingRun):
        raise Inconclusive(f"nothing to reduce, and no pass: {_why(red)}")
    if red.first.stage not in golden.declared:
        raise UsageError(f"nothing to reduce: every stage passes, and {'; '.join(failures(red.report))}")
    model, derived = golden.manifest.model, f"cut from {golden.folder} by parity reduce"

    def dump(ids: Sequence[int], k: Sequence[int], budget: int, name: str) -> TrustedGolden:
        prompts = folder / f"{name}.jsonl"
        prompts.write_text(json.dumps({"id": name, "ids": list(ids)}))
        sides = Path(model.target.path), Path(model.drafter.path)
        place = out if name == "reduced" else folder / name
        reference = "plain" if is_plain(golden.manifest.producer) else "own"
        return trusted(
            dump_golden(*sides, prompts, k, budget, (), threads, place, reference=reference, derived=derived)
        )

    mode = red.run.manifest.case.mode
    build = partial(build_device, device, precision=precision, limits=limits)
    reducer = Reducer(golden, build, dump, mode, bounds, folder, rerun, told)
    case = reducer.reduce(red.first_in(golden))
    return Reduced(case, reducer.write(case), mode)


def _why(red: RankMismatch | Report) -> str:
    """What a comparison says in which no row fails."""
    if isinstance(red, RankMismatch):
        (read,) = rank_causes(red)
        return f"{read.check.evidence} ({read.says})"
    return "; ".join(failures(red)) or red.verdict
