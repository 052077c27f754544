"""Where a device goes red: the cheapest run over a golden that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from parity.compare import compare
from parity.compare.report import FAIL, Place
from parity.drive import Progress, RunRequest, run_device
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
    """Runs a device over another golden of a prompt, in the mode it went red in."""

    device: Device
    mode: Mode
    folder: Path
    count: int = 0

    def __call__(self, golden: Dump) -> Dump:
        """The run."""
        self.count += 1
        out = self.folder / f"again-{self.count}"
        return Dump(run_device(RunRequest(self.device, golden, self.mode, (), out)))


def red_run(golden: Dump, run: Dump, policy: Policy) -> Red | None:
    """The first failing place of a run that was made already."""
    report = compare(golden, run, policy)
    return Red(golden, run, report.first.prompt, report.first) if report.first else None


def red_device(golden: Dump, device: Device, policy: Policy, folder: Path, progress: Progress) -> Red | None:
    """Run a device until it fails: the longest prompt briefly, local and chained, then every prompt whole.

    The prompt that fails is run whole: later rounds tell apart what the first ones do not. None where it passes over the whole golden in both modes.
    """
    looks = list(_looks(golden))
    for number, (mode, prompt, rounds) in enumerate(looks):
        progress(number, len(looks), f"{mode}, {golden.manifest.case.prompts[prompt].id}")
        found = _look(golden, device, policy, mode, prompt, rounds, folder / str(number))
        if found is not None:
            whole = len(golden.manifest.case.prompts[prompt].generation.acceptance_length)
            return found if rounds >= whole else _look(golden, device, policy, mode, prompt, whole, folder / "whole") or found
    return None


def _look(golden: Dump, device: Device, policy: Policy, mode: Mode, prompt: int, rounds: int, out: Path) -> Red | None:
    view = OnePrompt(golden, prompt, rounds)
    run = Dump(run_device(RunRequest(device=device, golden=view, mode=mode, stages=(), out=out)))
    report = compare(view, run, policy)
    failed = report.verdict == FAIL and report.first is not None
    return Red(view, run, prompt, report.first) if failed else None


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
