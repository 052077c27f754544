"""A diagnosis from end to end: the run that goes red, what it is made of, and what gates say where no stage is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from parity.compare.report import Report
from parity.diagnose import Diagnosis, diagnose, inconclusive, renumbered, undecided
from parity.diagnose.evidence import Red, Redrive, failures, other_prompts, red_device, red_run
from parity.diagnose.gates import Found, lacking, read_gates, until_red
from parity.diagnose.ranks import Parted, RankView, read_ranks
from parity.diagnose.trials import Trials
from parity.gates.evidence import Gates
from parity.golden.views import DumpView, TrustedGolden
from parity.isolation import Limits
from parity.policy import read_policy
from parity.producers import ReferenceRerun, bench, counterfactuals
from parity.progress import Progress, quiet

HISTORIES = 60
"""Accept/reject histories that a diagnosis explores where no stage is red."""


@dataclass(frozen=True)
class Asked:
    """What to diagnose: a run, or a device that is run now; see `parity.api.diagnose_device`. `folder` is for runs."""

    golden: TrustedGolden
    run: DumpView | None
    device: str
    precision: str
    policy: str | None
    threads: int
    folder: Path
    limits: Limits | None = None
    progress: Progress = quiet


def diagnosed(asked: Asked) -> Diagnosis | list[Found] | None:
    """The diagnosis; what gates found, or lack, where no stage is red; None where nothing is wrong."""
    golden, run = asked.golden, asked.run
    bounds = read_policy(asked.policy, run.manifest.case.precision if run else asked.precision)
    if run is not None:
        red = red_run(golden, run, bounds, ReferenceRerun(asked.progress))
    else:
        context = bench(
            golden,
            asked.device,
            asked.precision,
            asked.folder / "gates",
            asked.limits,
            histories=HISTORIES,
            bounds=asked.policy,
        )
        if shared := read_gates(until_red(context, ["provenance"])):
            return shared
        live = context.device()
        red = red_device(golden, live, bounds, asked.folder, asked.progress, context.run)
    if isinstance(red, Parted):
        return read_ranks(red)
    if not isinstance(red, Red):
        return _beyond_stages(red, until_red(context) if run is None else None)
    rank = red.run.rank if isinstance(red.run, RankView) else None
    reference, hypotheses = counterfactuals(golden, asked.threads)
    trials = Trials(red.golden, red.run, red.number, bounds, reference)
    others: DumpView | Redrive = red.run
    if run is None:
        trials.drive = Redrive(live, red.run.manifest.case.mode, asked.folder, rank)
        others = red.run if red.golden is golden else trials.drive
    trials.others = partial(other_prompts, golden, red.prompt, others)
    found = diagnose(trials, hypotheses, red.first, red.residuals())
    found = replace(found, evidence=failures(red.report))
    read = read_gates(until_red(context)) if run is None and red.free else []
    return read or (found if red.golden is golden else renumbered(found, red.prompt))


def _beyond_stages(report: Report | None, gates: Gates | None) -> Diagnosis | list[Found] | None:
    """What gates found; else what is missing in the comparison, where it was inconclusive, and in the gates."""
    if gates and (found := read_gates(gates)):
        return found
    lack = lacking(gates) if gates else []
    if report:
        told = inconclusive(report)
        return replace(told, evidence=(*told.evidence, *lack))
    return undecided("local and chained", gates.verdict, lack) if gates and lack else None
