"""`parity diff A B`: two things compared without a golden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from parity.cli.imports import list_names, write_map
from parity.cli.options import Command, write_json
from parity.plain import echo

SHOWN = 5
"""Names of a list on the terminal."""

OWN = {
    "names": "--map",
    "suggested": "--suggest-map",
    "floor": "--floor",
    "any_dtype": "--any-dtype",
    "allow_constant": "--allow-constant",
}
"""Options of two things; `json_file` goes with both."""


def pair_options(command: Command) -> Command:
    """The options of two things, for `parity diff`."""
    path = click.Path(path_type=Path)
    options = (
        click.option(
            "--map", "names", type=path, metavar="FILE", help="Two things: rows from names of A to names of B, as TOML."
        ),
        click.option(
            "--suggest-map",
            "suggested",
            type=path,
            metavar="FILE",
            help="Two things: write such a map, from what the tensors hold, and compare nothing.",
        ),
        click.option(
            "--floor",
            type=path,
            metavar="C",
            help="Two things: what B gives in the lower precision; bounds are multiples of its error.",
        ),
        click.option(
            "--any-dtype", is_flag=True, help="Two things: a tensor may be of another dtype; the coarser one bounds."
        ),
        click.option(
            "--allow-constant", is_flag=True, help="Two things: tensors of one value count, as weights of norms do."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def refuse_mixed(two: bool) -> None:
    """Refuse options of a golden's comparison beside two things, and the other way round.

    Raises:
        UsageError: one is given.
    """
    from parity.errors import UsageError

    context = click.get_current_context()
    for param in context.command.params:
        name = param.name or ""
        given = context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
        if not given or name in ("run", "other", "json_file") or (name in OWN) is two:
            continue
        if two:
            raise UsageError(f"{param.opts[0]} is of RUN against a golden: two things (A B) are compared without one")
        raise UsageError(f"{param.opts[0]} is of two things: parity diff A B {param.opts[0]} …")


def diff_pair(actual: Path, expected: Path, json_file: Path | None, asked: dict[str, Any]) -> int:
    """Compare, or suggest a map; the exit code."""
    from parity.reports.tensors import print_tensors
    from parity.tensors import compare_tensors

    if asked["suggested"]:
        return _suggest(actual, expected, json_file, asked)
    report = compare_tensors(
        actual,
        expected,
        floor=asked["floor"],
        check_dtype=not asked["any_dtype"],
        allow_constant=asked["allow_constant"],
        names=asked["names"],
    )
    sides = {"actual": str(actual), "expected": str(expected)}
    print_tensors(report, **sides)
    write_json(json_file, lambda: sides | report.to_dict() | {"exit_code": report.exit_code})
    return report.exit_code


def _suggest(actual: Path, expected: Path, json_file: Path | None, asked: dict[str, Any]) -> int:
    """Write the map and say what it leaves open; the exit code."""
    from parity.errors import UsageError
    from parity.reproducing import command_line
    from parity.tensors.suggesting import suggest_names

    if given := [OWN[name] for name in OWN if name != "suggested" and asked[name]]:
        raise UsageError(f"{given[0]} is of a comparison, and --suggest-map compares nothing: leave one out")
    found = suggest_names(actual, expected)
    write_map(asked["suggested"], found.text())
    counts = f"{len(found.same)} names are the same, {len(found.paired) + len(found.by_name)} are paired"
    echo(
        f"{asked['suggested']}: {counts}, {len(found.unsure)} are for you to choose, {len(found.unlike)} are not paired"
    )
    list_names("though its numbers differ", [f"{name} goes to {to}" for name, to in found.by_name.items()], SHOWN)
    list_names("is unsure", [f"{name}: {said}," for name, said in found.unsure.items()], SHOWN)
    list_names("is not paired", [f"{name} ({why})" for name, why in found.unlike.items()], SHOWN)
    echo(f"next: {command_line('diff', actual, expected, map=asked['suggested'])}")
    paired = {name: places[0][2] for name, places in found.paired.items()}
    open_ = {"same": found.same, "by_name": found.by_name, "unsure": found.unsure, "unlike": found.unlike}
    write_json(json_file, {"paired": paired} | open_)
    return 3 if found.unsure or found.unlike or not (found.same or found.paired) else 0
