"""`parity ratchet`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from parity.cli.history import default_url
from parity.cli.options import json_option, write_json


@click.command()
@click.argument("policy")
@click.argument("url", required=False)
@click.option(
    "--nights", type=int, default=14, show_default=True, help="Clean nights a lower bound rests on, 14 at the least."
)
@click.option("--label", metavar="NAME", help="The policy's label in the matrix; its own name by default.")
@click.option("--cell", metavar="GLOB", help="Only what these cells found.")
@click.option(
    "--calibration",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Clean maxima of your own device, from `parity calibrate --json`; those of the tiny pair by default.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the policy with the lower bounds to this file; comments are kept.",
)
@click.option("--check", is_flag=True, help="Exit 1 where a bound could be lower, or is looser than --against has it.")
@click.option("--against", metavar="POLICY", help="With --check: the policy as it was, file or name.")
@json_option
def ratchet(
    policy: str,
    url: str | None,
    nights: int,
    label: str | None,
    cell: str | None,
    calibration: Path | None,
    out: Path | None,
    check: bool,
    against: str | None,
    json_file: Path | None,
) -> None:
    """Propose lower bounds where the nights allow them; never a higher one. POLICY: a file or a shipped name."""
    from dataclasses import asdict

    from parity.history import load
    from parity.history.ratchet import labelled, looser, proposals, tightened
    from parity.history.series import WINDOW
    from parity.policy import read_policy, source_of
    from parity.reports.console import console
    from parity.reports.history import print_proposals

    source = source_of(policy, policy)
    rules = read_policy(source, "")
    frame = labelled(load(default_url(url), cell=cell, last=max(nights, WINDOW), repeats=True), label or rules.name)
    found = proposals(rules, frame, nights, calibration)
    loosened = list(looser(rules, read_policy(against, ""), frame)) if against else []
    write_json(
        json_file, lambda: {"policy": str(source), "proposals": [asdict(one) for one in found], "loosened": loosened}
    )
    print_proposals(str(source), found)
    lower = [one for one in found if one.tighter]
    said = console()
    if out:
        _write(out, tightened(source.read_text(), found))
        said.print(f"{out}: {len(lower)} bounds lowered", soft_wrap=True)
    for stage, mode, name, before, now in loosened[:5]:
        said.print(f"loosened: {name} of {stage} ({mode}) from {before:g} to {now:g}", soft_wrap=True)
    judged = any(one.nights >= nights for one in found)
    said.print(
        f"{len(lower)} bounds could be lower, {len(loosened)} are looser than before"
        + ("" if judged else f"; no row has {nights} clean nights")
    )
    sys.exit(1 if check and (lower or loosened) else 0 if judged else 3)


def _write(path: Path, text: str) -> None:
    from parity.files import put

    put(path, text.encode(), f"--out {path}")
