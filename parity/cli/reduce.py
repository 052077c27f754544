"""`parity reduce`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from parity.cli.common import (
    device_option,
    fresh,
    golden_option,
    json_option,
    open_golden,
    precision_option,
    write_json,
)
from parity.errors import Inconclusive
from parity.plain import echo


@click.command()
@golden_option
@device_option
@precision_option
@click.option("--policy", metavar="FILE|NAME", help="Bounds; the default policy of the precision where not given.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads of the references.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Golden to write; a new one under .parity/goldens by default.",
)
@json_option
def reduce(golden, device_name, precision, policy, threads, out, json_file) -> None:
    """Cut a failing case to the shortest prompt, fewest rounds and smallest K that still fail at the same stage.

    Writes the case as a golden of its own and prints the command that reproduces the failure. Exit code 0: the
    device fails nowhere; 1: a reduced case was written.
    """
    from parity.partial import scratch

    golden = open_golden(golden)
    with scratch("reduce") as folder:
        found = reduced(golden, device_name, precision, policy, threads, out, folder)
    if found is None:
        echo("nothing to reduce: the device passes every stage, local and chained")
        write_json(json_file, {})
        return
    case, made, mode = found
    command = f"parity diff --golden {made.folder} --device {device_name} --precision {precision} --mode {mode}"
    write_json(json_file, asdict(case) | {"golden": str(made.folder), "mode": mode, "reproduce": command})
    echo(f"{len(case.ids)} prompt tokens, K = {case.k}, {case.round} rounds: fails at {case.first}")
    echo(f"reproduce: {command}")
    sys.exit(1)


def reduced(golden, device_name, precision, policy, threads, out, folder):
    """The smallest failing case, its golden and the mode that shows it; None where the device fails nowhere.

    Raises:
        Inconclusive: it does not pass either, and no row of it fails.
    """
    from parity.cli.golden import make_golden
    from parity.cli.wiring import builder, device
    from parity.diagnose.failing_run import FailingRun, find_failing_run
    from parity.policy import read_policy
    from parity.reduce import Reducer

    bounds = read_policy(policy, precision)
    out = out or fresh("goldens", "reduced")
    red = find_failing_run(golden, device(device_name, golden, precision), bounds, folder, lambda *what: None)
    if red is None:
        return None
    if not isinstance(red, FailingRun):
        raise Inconclusive(f"nothing to reduce, and no pass: {_why(red)}")
    model = golden.manifest.model
    derived = f"cut from {golden.folder} by parity reduce"

    def dump(ids, k, budget, name):
        prompts = folder / f"{name}.jsonl"
        prompts.write_text(json.dumps({"id": name, "ids": list(ids)}))
        target, drafter = Path(model.target.path), Path(model.drafter.path)
        place = out if name == "reduced" else folder / name
        return make_golden(target, drafter, prompts, k, budget, (), threads, place, derived=derived)

    def build(case):
        return builder(device_name, case)(precision=precision)

    mode = red.run.manifest.case.mode
    reducer = Reducer(golden, build, dump, mode, bounds, folder, lambda line: echo(line, err=True))
    case = reducer.reduce(red.first_in(golden))
    return case, reducer.write(case), mode


def _why(found) -> str:
    """What a comparison says in which no row fails."""
    from parity.diagnose.failing_run import failures
    from parity.diagnose.ranks import RankMismatch, rank_causes

    if isinstance(found, RankMismatch):
        (read,) = rank_causes(found)
        return f"{read.check.evidence} ({read.says})"
    return "; ".join(failures(found)) or found.verdict
