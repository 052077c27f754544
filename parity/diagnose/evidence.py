"""Where a device goes red: the cheapest run over a golden that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from parity.compare.report import FAIL, Place
from parity.diagnose.ranks import OneRank, Parted, parted, told_apart
from parity.drive import Progress, RunRequest, run_device
from parity.errors import Inconclusive
from parity.golden.manifest import Mode
from parity.golden.slices import OnePrompt
from parity.golden.store import Dump
from parity.policy import Policy
from parity.seam import Device

QUICK = 4
"""Rounds of the first look: enough for a rejection, what it leaves in the caches, and the round behind it."""


@dataclass(frozen=True)
class Red:
    """A run that fails, the golden it is held against, and where it first does; `prompt` is the golden's own number."""

    golden: Dump
    run: Dump
    prompt: int
    first: Place

    def first_in(self, whole: Dump) -> Place:
        """`first` in the prompt numbers of the whole golden."""
        return self.first if self.golden is whole else replace(self.first, prompt=self.prompt)


@dataclass
class Redrive:
    """Runs a device over another golden of a prompt, in the mode it went red in; as one rank has it, where it is a rank's."""

    device: Device
    mode: Mode
    folder: Path
    rank: int | None = None
    count: int = 0

    def __call__(self, golden: Dump) -> Dump:
        """The run."""
        self.count += 1
        out = self.folder / f"again-{self.count}"
        run = Dump(run_device(RunRequest(self.device, golden, self.mode, (), out)))
        return run if self.rank is None else OneRank(run, self.rank)


def red_run(golden: Dump, run: Dump, policy: Policy) -> Red | Parted | None:
    """The first failing place of a run that was made already.

    Raises:
        Inconclusive: nothing fails, and rows that ran through experts of the run's own cannot be judged.
    """
    one, report = told_apart(golden, run, policy)
    if report.first is None and report.own_experts is not None:
        raise Inconclusive(f"nothing is red that can be judged here: {report.own_experts}")
    if report.first is None:
        return None
    return parted(one, report) or Red(golden, one, report.first.prompt, report.first)


def red_device(golden: Dump, device: Device, policy: Policy, folder: Path, progress: Progress) -> Red | Parted | None:
    """Run a device until it fails: the longest prompt briefly, local and chained, then every prompt whole.

    The prompt that fails is run whole: later rounds tell apart what the first ones do not. None where it passes over the
    whole golden in both modes. Ranks that differ within their bounds are what it is only where nothing fails by its values.
    """
    looks = list(_looks(golden))
    differ: Parted | None = None
    for number, (mode, prompt, rounds) in enumerate(looks):
        progress(number, len(looks), f"{mode}, {golden.manifest.case.prompts[prompt].id}")
        found = _look(golden, device, policy, mode, prompt, rounds, folder / str(number))
        if isinstance(found, Red):
            whole = len(golden.manifest.case.prompts[prompt].generation.acceptance_length)
            again = _look(golden, device, policy, mode, prompt, whole, folder / "whole") if rounds < whole else found
            return again if isinstance(again, Red) else found
        differ = differ or found
    return differ


def _look(golden: Dump, device: Device, policy: Policy, mode: Mode, prompt: int, rounds: int, out: Path) -> Red | Parted | None:
    view = OnePrompt(golden, prompt, rounds)
    run, report = told_apart(view, Dump(run_device(RunRequest(device=device, golden=view, mode=mode, stages=(), out=out))), policy)
    if report.verdict != FAIL or report.first is None:
        return None
    return parted(run, report) or Red(view, run, prompt, report.first)


def other_prompts(golden: Dump, prompt: int, run: Dump | Callable[[Dump], Dump]) -> Iterator[tuple[Dump, Dump, int]]:
    """(golden, run, number of the prompt in both) for every prompt but one; `run` is whole, or makes a prompt's run."""
    for number in range(len(golden.manifest.case.prompts)):
        if number == prompt:
            continue
        if isinstance(run, Dump):
            yield golden, run, number
        else:
            view = OnePrompt(golden, number, len(golden.manifest.case.prompts[number].generation.acceptance_length))
            yield view, run(view), 0


def _looks(golden: Dump) -> Iterator[tuple[Mode, int, int]]:
    """Mode, prompt and rounds of each run, cheapest first."""
    prompts = golden.manifest.case.prompts
    by_length = sorted(range(len(prompts)), key=lambda number: -len(prompts[number].ids))
    yield "local", by_length[0], QUICK
    yield "chained", by_length[0], QUICK
    for mode in ("local", "chained"):
        for number in by_length:
            yield mode, number, len(prompts[number].generation.acceptance_length)
