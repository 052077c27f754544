"""Options that several commands share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parity.errors import UsageError

if TYPE_CHECKING:
    from parity.isolation import ProcessLimits


Command = Callable[..., Any]
"""A function that click makes a command of, or a command."""


MOST = 1e9
"""Seconds or gibibytes of a limit."""


STAGE_HELP = (
    "Only these stages: a glob over the full name (`target.layers.*.out`), or over its last part on every side (`out`: "
    "the target's layers and the drafter's); caches by their full name, or all of them as `rollback`."
)


stage_option = click.option("--stage", "stages", multiple=True, metavar="GLOB", help=STAGE_HELP)


device_option = click.option(
    "--device",
    "device_name",
    default="numpy",
    show_default=True,
    help="numpy, xla, nkipy, neuron, torch, or package.module:factory; options of the device follow: numpy,tp=2.",
)


mode_option = click.option(
    "--mode",
    type=click.Choice(["chained", "local"]),
    default="chained",
    show_default=True,
    help="chained: errors travel downstream; local: every stage starts from the golden's input.",
)


layers_option = click.option(
    "--layers",
    default="",
    metavar="A:B",
    help="Target layers A to B-1 alone, one in memory at a time, each on the golden's inputs; with --mode local.",
)


precision_option = click.option(
    "--precision",
    type=click.Choice(["bfloat16", "float32"]),
    default="bfloat16",
    show_default=True,
    help="Precision the device computes in.",
)


class Amount(click.FloatRange):
    """A number that limits something, above zero unless `or_zero`: neither nan nor infinite, numbers to click."""

    def __init__(self, or_zero: bool = False) -> None:
        super().__init__(0, min_open=not or_zero)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """As a range has it, once it is a limit."""
        if not click.FLOAT.convert(value, param, ctx) <= MOST:
            self.fail(f"{value} limits nothing: a number up to {MOST:g} does", param, ctx)
        return super().convert(value, param, ctx)


def isolation_options(default: bool) -> Callable[[Command], Command]:
    """`--isolate`, with its limits; `limits` makes one of the three."""
    options = (
        click.option(
            "--isolate/--no-isolate",
            default=default,
            show_default=True,
            help="Run the device in a process of its own: if it ends, hangs or blows up, one check is inconclusive.",
        ),
        click.option(
            "--time-limit",
            type=Amount(),
            default=3600,
            show_default=True,
            metavar="SECONDS",
            help="With --isolate: of one verb; a first pass may wait long for its compiler.",
        ),
        click.option(
            "--memory-limit",
            type=Amount(),
            metavar="GIB",
            help="With --isolate: memory of the device's own; nine tenths of the machine's by default.",
        ),
    )
    return lambda command: options[0](options[1](options[2](command)))


def limits(isolate: bool, time_limit: float, memory_limit: float | None) -> ProcessLimits | None:
    """The limits of a device's process; None where it has none of its own.

    Raises:
        UsageError: there is a limit, and no process of its own.
    """
    if isolate:
        from parity.isolation import ProcessLimits

        return ProcessLimits(time_limit, None if memory_limit is None else int(memory_limit * 2**30))
    for name in ("time_limit", "memory_limit"):
        if click.get_current_context().get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise UsageError(f"--{name.replace('_', '-')} limits a process of the device's own: it goes with --isolate")
    return None


class OutputFile(click.Path):
    """A file to write once the work is done: its folder has to be there before it begins."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not path.parent.is_dir():
            self.fail(f"{path}: there is no folder {path.parent}", param, ctx)
        return path


json_option = click.option(
    "--json",
    "json_file",
    type=OutputFile(),
    help="Write the result as JSON to this file.",
)


def write_json(path: Path | None, value: Any) -> None:
    """Write a result beside what is printed; `value` may be a function, called only where a file is asked for."""
    if path is not None:
        from parity.files import put

        text = json.dumps(value() if callable(value) else value, indent=1, default=str)
        put(path, f"{text}\n".encode(errors="backslashreplace"), f"--json {path}")


bound_option = click.option(
    "--bound",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.05,
    show_default=True,
    help="Relative loss of acceptance length that still passes.",
)


smaller_options = (
    click.option(
        "--positions",
        metavar="RANGES",
        help="Keep the rows of these prompt positions, as in 0-15,40,100-, beside the last two and all generated ones.",
    ),
    click.option(
        "--logits",
        metavar="whole|top:K",
        help="Keep the K largest logits of a row and the log-sum-exp; top:64 with --sketch.",
    ),
    click.option(
        "--sketch",
        type=click.IntRange(min=1),
        metavar="N",
        help="Keep N random sums of a row and its norm in place of it (docs/smaller-goldens.md).",
    ),
    click.option(
        "--sketch-seed", type=click.IntRange(0, 2**63 - 1), help="Of the sums' signs; the golden's, or 0, by default."
    ),
)
"""What a dump keeps of its tensors."""


KEPT = ("positions", "logits", "sketch", "sketch_seed")
"""The parameters that these options give."""


def smaller_option(command: Command) -> Command:
    """--positions, --logits, --sketch and --sketch-seed."""
    for option in reversed(smaller_options):
        command = option(command)
    return command
