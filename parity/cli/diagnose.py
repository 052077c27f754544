"""`parity diagnose`."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import click

from parity.cli.common import (
    agree,
    device_option,
    golden_option,
    isolation_options,
    json_option,
    limits,
    open_golden,
    precision_option,
    progress,
    published_configs,
    write_json,
)

HISTORIES = 60
"""Accept/reject histories that a diagnosis explores where no stage is red."""


@click.command()
@click.argument("run", type=click.Path(path_type=Path), required=False, metavar="[RUN]")
@golden_option
@device_option
@precision_option
@click.option("--policy", metavar="FILE|NAME", help="Bounds; the default policy of the precision where not given.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads of the references.")
@isolation_options(default=False)
@json_option
def diagnose(run, golden, device_name, precision, policy, threads, json_file, **isolation) -> None:
    """Name the defect behind a red RUN, or behind --device: run the references under one hypothesis at a time.

    A hypothesis is named if the references under it give the device's tensors, down to the noise floor. Exit code 0:
    nothing is wrong; 1: something is, named or not; 3: what would show it is missing.
    """
    from parity.golden.store import Dump
    from parity.partial import scratch
    from parity.reports.diagnosis import print_clean, print_diagnosis, print_gates

    golden = open_golden(golden)
    with scratch("diagnose") as folder:
        run = Dump(run) if run else None
        if run is not None:
            agree(run, device_name=device_name, precision=precision)
        found = diagnose_device(golden, run, device_name, precision, policy, threads, folder, limits(**isolation))
    write_json(json_file, [asdict(one) for one in found] if isinstance(found, list) else asdict(found) if found else {})
    if not found:
        print_clean(golden, run)
        return
    (print_gates if isinstance(found, list) else print_diagnosis)(found, golden)
    sys.exit(3 if getattr(found, "verdict", "") in ("inconclusive", "disputed") else 1)


def diagnose_device(golden, run, device_name, precision, policy, threads, folder, limits=None):
    """The diagnosis of a run, or of a device run now; what gates found, or lack, where no stage is red; None where nothing is wrong."""
    from parity.cli.wiring import Rerun, builder, counterfactuals, judging
    from parity.diagnose import diagnose, renumbered
    from parity.diagnose.evidence import Red, Redrive, failures, other_prompts, red_device, red_run
    from parity.diagnose.gates import read_gates, until_red
    from parity.diagnose.ranks import OneRank, Parted, read_ranks
    from parity.diagnose.trials import Trials
    from parity.gates.context import Bench
    from parity.policy import read_policy

    bounds = read_policy(policy, run.manifest.case.precision if run else precision)
    if run is not None:
        judging(golden)
        red = red_run(golden, run, bounds, Rerun())
    else:
        build = builder(device_name, golden, limits)
        bench = Bench(golden, device_name, build, precision, folder / "gates", HISTORIES, bounds=policy)
        bench.rotate, bench.configs = build.rotary(), published_configs()
        if shared := read_gates(until_red(bench, ["provenance"])):
            return shared
        live = bench.device()
        with progress(f"diagnose {device_name}") as bar:
            red = red_device(golden, live, bounds, folder, bar, bench.run)
    if isinstance(red, Parted):
        return read_ranks(red)
    if not isinstance(red, Red):
        return _beyond_stages(red, run is None and until_red(bench))
    rank = red.run.rank if isinstance(red.run, OneRank) else None
    reference, hypotheses = counterfactuals(golden, threads)
    trials = Trials(red.golden, red.run, red.number, bounds, reference)
    if run is None:
        trials.drive = Redrive(live, red.run.manifest.case.mode, folder, rank)
    trials.others = partial(other_prompts, golden, red.prompt, red.run if red.golden is golden else trials.drive)
    found = diagnose(trials, hypotheses, red.first, red.residuals())
    found = replace(found, evidence=failures(red.report))
    read = read_gates(until_red(bench)) if run is None and red.free else []
    return read or (found if red.golden is golden else renumbered(found, red.prompt))


def _beyond_stages(report, gates):
    """What gates found; else what is missing in the comparison, where it was inconclusive, and in the gates."""
    from parity.diagnose import inconclusive, undecided
    from parity.diagnose.gates import lacking, read_gates

    if gates and (found := read_gates(gates)):
        return found
    lack = lacking(gates) if gates else []
    if report:
        told = inconclusive(report)
        return replace(told, evidence=(*told.evidence, *lack))
    return undecided("local and chained", gates.verdict, lack) if lack else None
