"""The golden and the run that a command is given: the options that name them, and how they are opened."""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parity.cli.options import Command
from parity.errors import UsageError
from parity.home import home
from parity.plain import echo

if TYPE_CHECKING:
    from parity.golden.choice import Wanted
    from parity.golden.store import Dump
    from parity.golden.trust import OpenedGolden


moved_options = {
    side: click.option(
        f"--{side}",
        type=click.Path(path_type=Path),
        metavar="CKPT",
        help=f"Where the golden's {side} lies now, if it moved.",
    )
    for side in ("target", "drafter")
}


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
