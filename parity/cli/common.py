"""Defaults and options that several commands share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from parity.errors import UsageError
from parity.home import home
from parity.plain import echo, printable
from parity.progress import Progress, quiet

if TYPE_CHECKING:
    from parity.golden.choice import Wanted
    from parity.golden.store import Dump
    from parity.golden.trust import OpenedGolden
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
moved_options = {
    side: click.option(
        f"--{side}",
        type=click.Path(path_type=Path),
        metavar="CKPT",
        help=f"Where the golden's {side} lies now, if it moved.",
    )
    for side in ("target", "drafter")
}
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


partial_option = click.option(
    "--partial",
    is_flag=True,
    help="The run is a dump of some stages and does not say which: judge what is there, and say which are missing.",
)


def golden_option(command: Command) -> Command:
    """--golden, --target and --drafter, for the command together its `golden`: see `open_golden`."""
    option = click.option(
        "--golden", type=click.Path(path_type=Path), metavar="DIR", help="Golden folder; the newest one by default."
    )
    return option(with_checkpoints(command))


def with_checkpoints(command: Command) -> Command:
    """--target and --drafter beside a command's own `golden`, for checkpoints that are not where they were."""

    @wraps(command)
    def run(golden: Path | None, target: Path | None, drafter: Path | None, **rest: Any) -> Any:
        from parity.golden.choice import Wanted

        return command(golden=Wanted(golden, target, drafter), **rest)

    return moved_options["target"](moved_options["drafter"](run))


def open_golden(wanted: Wanted) -> Dump:
    """Open a golden to look at: the one a `Wanted` names, or the newest of a whole case; standard error says which.

    Raises:
        UsageError: there is none, the folder is a device's run, or a named checkpoint is not the golden's.
    """
    from parity.golden.choice import choose

    golden, why = choose(wanted, home() / "goldens")
    echo(f"golden: {golden.folder} ({why})", err=True)
    return golden


def open_judging(wanted: Wanted, sampled: bool = False, smaller: bool = False) -> OpenedGolden:
    """As `open_golden`, to judge by: checked once, see `parity.golden.trust.trusted`."""
    from parity.golden.trust import trusted

    return trusted(open_golden(wanted), sampled, smaller)


def open_both(
    wanted: Wanted, folder: Path | None, partial: bool, sampled: bool = False, smaller: bool = False
) -> tuple[OpenedGolden, Dump | None]:
    """A golden to judge by, and the run in a folder, if one is named; a partial run shows what it holds and no more.

    The run is looked at first: it is what the user named, and a golden may be the newest one.

    Raises:
        UsageError: as `open_judging`; the folder is no run, or nothing is named that could be partial.
    """
    from parity.golden.store import Dump

    if partial and folder is None:
        raise UsageError("--partial is of a dump: name its folder; a device declares what it shows")
    run = None if folder is None else Dump(folder)
    if run and run.manifest.kind == "golden":
        raise UsageError(f"{folder} is a golden, not a device's run: a golden is named with --golden")
    golden = open_judging(wanted, sampled, smaller)
    return golden, run.partial(golden) if run and partial else run


def foretell(verb: str, golden: OpenedGolden, device_name: str) -> None:
    """Say on standard error how long a command will take, where that is long."""
    from parity.estimate import estimate

    if said := estimate(verb, golden, device_name):
        echo(said, err=True)


def agree(run: Any, **chosen: Any) -> None:
    """An option that was given beside a run says what the run says; `chosen` are the command's parameters.

    Raises:
        UsageError: it contradicts the run.
    """
    context, case = click.get_current_context(), run.manifest.case
    said = {"precision": case.precision, "mode": case.mode, "device_name": run.manifest.producer.name}
    said["layers"] = ":".join(map(str, case.layers or ())) or "every layer"
    for name, value in chosen.items():
        given = context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
        if given and value != said[name]:
            option = f"--{name.removesuffix('_name')}"
            raise UsageError(
                f"{option} {value} contradicts {run.folder}, which holds {said[name]}: leave {option} out, or judge "
                "another run"
            )


def write_json(path: Path | None, value: Any) -> None:
    """Write a result beside what is printed; `value` may be a function, called only where a file is asked for."""
    if path is not None:
        from parity.files import put

        text = json.dumps(value() if callable(value) else value, indent=1, default=str)
        put(path, f"{text}\n".encode(errors="backslashreplace"), f"--json {path}")


@contextmanager
def progress(what: str) -> Iterator[Progress]:
    """A progress bar on standard error from the first word of progress on, silent when that is no terminal.

    What is printed meanwhile stands above it.
    """
    with ExitStack() as shown:
        show: list[Progress] = []

        def tell(done: int, total: int, name: str) -> None:
            if not show:
                show.append(_bar(what, shown))
            show[0](done, total, name)

        yield tell


def _bar(what: str, shown: ExitStack) -> Progress:
    """What moves a new bar, which is there as long as `shown`."""
    from rich import progress as rich_progress
    from rich.console import Console

    console = Console(file=sys.stderr)
    if not console.is_terminal:
        return quiet
    what_is_done = rich_progress.TextColumn("{task.description}", markup=False)
    figures = rich_progress.MofNCompleteColumn(), rich_progress.TimeRemainingColumn()
    columns = what_is_done, rich_progress.BarColumn(), *figures
    bar = rich_progress.Progress(
        *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
    )
    shown.enter_context(bar)
    shown.enter_context(redirect_stdout(_Above(bar, sys.stdout)))
    shown.enter_context(redirect_stderr(_Above(bar, sys.stderr)))
    task = bar.add_task(what, total=None)

    def tell(done: int, total: int, name: str) -> None:
        bar.update(task, completed=done, total=total, description=printable(f"{what} {name}"))

    return tell


class _Above:
    """A stream beside a progress bar on the same terminal: the bar is taken away while a text is written.

    rich's own way sends both streams to the bar's: results would leave standard output.
    """

    def __init__(self, bar: Any, stream: TextIO):
        self._bar, self._stream = bar, stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write with the bar away, which comes back at the end of a line."""
        self._bar.stop()
        count = self._stream.write(text)
        self._stream.flush()
        if text.endswith("\n"):
            self._bar.start()
        return count
