"""A diagnosis from end to end: the run that goes red, what it is made of, and what gates say where no stage is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from parity.compare.report import Report
from parity.diagnose import Diagnosis, diagnose, inconclusive, renumbered, undecided
from parity.diagnose.failing_run import (
    FailingRun,
    RerunOnGolden,
    failing_run,
    failures,
    find_failing_run,
    other_prompts,
)
from parity.diagnose.gates import GateCause, gate_causes, missing_evidence, run_until_failure
from parity.diagnose.ranks import RankMismatch, RankView, rank_causes
from parity.diagnose.trials import PromptTrials
from parity.gates.gate import GateReport
from parity.golden.views import DumpView, TrustedGolden
from parity.isolation import ProcessLimits
from parity.policy import read_policy
from parity.producers import ReferenceRerun, counterfactuals, gate_context
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
    limits: ProcessLimits | None = None
    progress: Progress = quiet


def diagnosed(asked: Asked) -> Diagnosis | list[GateCause] | None:
    """The diagnosis; what gates found, or lack, where no stage is red; None where nothing is wrong."""
    golden, run = asked.golden, asked.run
    bounds = read_policy(asked.policy, run.manifest.case.precision if run else asked.precision)
    if run is not None:
        red = failing_run(golden, run, bounds, ReferenceRerun(asked.progress))
    else:
        context = gate_context(
            golden,
            asked.device,
            asked.precision,
            asked.folder / "gates",
            asked.limits,
            histories=HISTORIES,
            bounds=asked.policy,
        )
        if shared := gate_causes(run_until_failure(context, ["provenance"])):
            return shared
        live = context.device()
        red = find_failing_run(golden, live, bounds, asked.folder, asked.progress, context.run)
    if isinstance(red, RankMismatch):
        return rank_causes(red)
    if not isinstance(red, FailingRun):
        return _beyond_stages(red, run_until_failure(context) if run is None else None)
    rank = red.run.rank if isinstance(red.run, RankView) else None
    reference, hypotheses = counterfactuals(golden, asked.threads)
    trials = PromptTrials(red.golden, red.run, red.number, bounds, reference)
    trials.drive = RerunOnGolden(live, red.run.manifest.case.mode, asked.folder, rank) if run is None else None
    runs = red.run if trials.drive is None or red.golden is golden else trials.drive
    trials.others = partial(other_prompts, golden, red.prompt, runs)
    diagnosis = diagnose(trials, hypotheses, red.first, red.residuals())
    diagnosis = replace(diagnosis, evidence=failures(red.report))
    read = gate_causes(run_until_failure(context)) if run is None and red.free else []
    return read or (diagnosis if red.golden is golden else renumbered(diagnosis, red.prompt))


def _beyond_stages(report: Report | None, gates: GateReport | None) -> Diagnosis | list[GateCause] | None:
    """What gates found; else what is missing in the comparison, where it was inconclusive, and in the gates."""
    if gates and (found := gate_causes(gates)):
        return found
    lack = missing_evidence(gates) if gates else []
    if report:
        told = inconclusive(report)
        return replace(told, evidence=(*told.evidence, *lack))
    return undecided("local and chained", gates.verdict, lack) if gates and lack else None
