"""Options of a run that two config.json describe, shared by `parity shapes` and `parity ops`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from parity.cli.options import Command, precision_option

MODELS = ("tiny", "20b", "120b")
PHASES = ("prefill", "draft", "verify", "commit")

_OPTIONS = (
    click.option(
        "--model",
        type=click.Choice(MODELS),
        default="tiny",
        show_default=True,
        help="A pair whose configs ship with the project.",
    ),
    click.option(
        "--target",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Folder with a target's config.json; no weights are read.",
    ),
    click.option(
        "--drafter", type=click.Path(path_type=Path), metavar="DIR", help="Folder with a drafter's config.json."
    ),
    click.option(
        "-k", "--k", "k", type=click.IntRange(min=1), default=4, show_default=True, help="K, draft tokens per round."
    ),
    click.option(
        "--prompt", type=click.IntRange(min=2), default=128, show_default=True, metavar="S", help="Prompt tokens."
    ),
    click.option(
        "--max-new-tokens", "tokens", type=click.IntRange(min=1), default=32, show_default=True, help="Token budget."
    ),
    click.option(
        "--acceptance-length",
        "emitted",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Tokens each round emits, bonus included.",
    ),
    precision_option,
    click.option(
        "--tp",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Tensor-parallel ranks; what one of them multiplies is listed.",
    ),
    click.option("--moe", default="masked", show_default=True, help="Formulation of the experts, masked or gathered."),
    click.option("--watched", is_flag=True, help="Programs of a pass whose every stage is shown, as in `parity diff`."),
    click.option(
        "--phase",
        "phases",
        type=click.Choice(PHASES),
        multiple=True,
        help="Only what this phase meets; may be repeated.",
    ),
)


def described_run(command: Command) -> Command:
    """Give a command the options of a described run; `inventory` takes all but `phases`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def inventory(model: str, target: Path | None, drafter: Path | None, **run: Any) -> Any:
    """The inventory of the named pair.

    Raises:
        UsageError: the configs or the run do not fit.
    """
    from parity import builders
    from parity.bundled import published_pair
    from parity.errors import UsageError

    if (target is None) != (drafter is None):
        raise UsageError("--target and --drafter go together")
    return builders.inventory(*((target, drafter) if target and drafter else published_pair(model)), **run)
