"""`parity faults list` and `parity faults run`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from parity.cli.opening import open_judging, with_checkpoints
from parity.cli.options import device_option, json_option, write_json
from parity.cli.progress_bar import progress
from parity.families import FAMILIES
from parity.plain import echo

if TYPE_CHECKING:
    from parity.families import Family
    from parity.golden.choice import Wanted
    from parity.golden.views import TrustedGolden


@click.group()
def faults() -> None:
    """Planted faults: defects of real implementations, each of which some gate must catch."""


@faults.command("list")
@click.option("--markdown", is_flag=True, help="The page docs/faults.md.")
@json_option
def list_faults(markdown: bool, json_file: Path | None) -> None:
    """Every planted fault: where it must show, which gate must catch it, and where it was seen."""
    from parity.builders import conditional_faults, planted_faults
    from parity.reports.faults import page, plain, print_list

    (catalogue, left_out), conditional = planted_faults(), [*conditional_faults().values()]
    write_json(json_file, [plain(fault) for fault in (*catalogue.values(), *conditional)])
    if markdown:
        echo(page(catalogue.values(), left_out, conditional), nl=False)
    else:
        print_list(catalogue.values(), left_out, conditional)


@faults.command("run")
@click.argument("names", nargs=-1, metavar="[ID]...")
@click.option("--all", "every", is_flag=True, help="Every fault that a gate is named for.")
@click.option("--conditional", is_flag=True, help="The sample of faults under a condition.")
@click.option(
    "--family",
    type=click.Choice([*FAMILIES]),
    help="Family of the drafter in the default golden.  [default: p-eagle]",
)
@click.option(
    "--partial-kv",
    default="",
    metavar="S+R+WxP",
    help="Pages that the drafter attends to in the default golden: the faults of partial KV are planted.",
)
@click.option(
    "--kv-cache",
    default="",
    metavar="FORMAT",
    help="Format of the caches in the default golden, with scales: the faults of quantised caches are planted.",
)
@device_option
@click.option(
    "--golden",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Golden to judge by; a small one made now by default.",
)
@with_checkpoints
@json_option
def run_faults(
    names: tuple[str, ...],
    every: bool,
    conditional: bool,
    family: Family | None,
    partial_kv: str,
    kv_cache: str,
    device_name: str,
    golden: Wanted,
    json_file: Path | None,
) -> None:
    """Plant faults in a device: killed or survived, placed where they sit or elsewhere.

    An ID may carry a condition: "attn-sinks-missing where cached > 128".

    Exit 1 if one survives or is placed wrongly. A comparison takes the golden's prompts one by one until the
    fault shows. The default golden is two chat prompts of the tiny pair, 12 new tokens each.
    """
    from parity.builders import builder, conditional_faults, planted_faults
    from parity.errors import UsageError
    from parity.fault_choice import choose_faults
    from parity.faults import FaultRunRequest
    from parity.faults import run_faults as run
    from parity.oracles import ReferenceRerun
    from parity.reports.faults import print_outcome, print_summary

    if [bool(names), every, conditional].count(True) != 1:
        raise UsageError("parity faults run: name faults, or --all, or --conditional")
    names = tuple(conditional_faults()) if conditional else names
    catalogue = planted_faults()[0] | (conditional_faults(names) if names else {})
    outcomes = []
    with _golden(golden, family, partial_kv, kv_cache) as opened, progress("faults") as bar:
        made = opened.manifest
        chosen = choose_faults(catalogue, names, made.model.family, made.case.partial_kv, made.case.kv_cache)
        echo(f"golden {opened.folder}: {len(opened.manifest.case.prompts)} prompts", err=True)
        request = FaultRunRequest(opened, device_name, builder(device_name, opened), rerun=ReferenceRerun())
        for number, (fault, outcome) in enumerate(zip(chosen, run(request, chosen), strict=True)):
            outcomes.append(outcome)
            print_outcome(outcome)
            bar(number + 1, len(chosen), fault.id)
    left = [name for name, fault in catalogue.items() if every and not fault.gate and family in (None, *fault.drafters)]
    print_summary(outcomes, left)
    write_json(json_file, [outcome.to_dict() for outcome in outcomes])
    sys.exit(int(not all(outcome.killed and outcome.placed for outcome in outcomes)))


@contextmanager
def _golden(wanted: Wanted, family: Family | None, partial_kv: str, kv_cache: str) -> Iterator[TrustedGolden]:
    """The named golden, or the family's default one, which lasts as long as the command.

    Raises:
        UsageError: the named golden is of another family, or has another partial KV, or other caches.
    """
    from parity.errors import UsageError
    from parity.fault_choice import small_golden
    from parity.partial import scratch

    if wanted.golden is not None:
        opened = open_judging(wanted)
        if family not in (None, opened.manifest.model.family):
            raise UsageError(f"--family {family}: the drafter of {opened.folder} is {opened.manifest.model.family}")
        if partial_kv not in ("", opened.manifest.case.partial_kv):
            raise UsageError(f"--partial-kv {partial_kv}: {opened.folder} was dumped with another, or with none")
        if kv_cache not in ("", opened.manifest.case.kv_cache):
            raise UsageError(f"--kv-cache {kv_cache}: {opened.folder} was dumped with another, or with none")
        yield opened
        return
    with scratch("faults") as made:
        with progress("golden") as bar:
            golden = small_golden(made, bar, family or "p-eagle", partial_kv, kv_cache)
        yield golden
