"""`parity diff A B`: two things compared without a golden."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parity.cli.common import Command, write_json

if TYPE_CHECKING:
    from parity.tensors.suggesting import Suggested

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
    write_json(json_file, lambda: sides | report.to_dict() | {"exit_code": report.exit_code})
    print_tensors(report, **sides)
    return report.exit_code


def _suggest(actual: Path, expected: Path, json_file: Path | None, asked: dict[str, Any]) -> int:
    raise NotImplementedError
