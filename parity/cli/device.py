"""`parity check-device` and `parity new-device`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from parity.cli.options import device_option, json_option, precision_option, write_json

folder = click.Path(path_type=Path)


@click.command("check-device")
@device_option
@precision_option
@click.option("--target", type=folder, metavar="CKPT", help="Target checkpoint folder; the tiny pair's by default.")
@click.option("--drafter", type=folder, metavar="CKPT", help="Drafter checkpoint folder; the tiny pair's by default.")
@click.option("-k", "k", type=click.IntRange(min=1), default=4, show_default=True, help="K, draft tokens per round.")
@json_option
def check_device(
    device_name: str, precision: str, target: Path | None, drafter: Path | None, k: int, json_file: Path | None
) -> None:
    """Walk a device through the contract, verb by verb, on a prompt of two tokens, before any golden is compared.

    Names the line of the contract that breaks (docs/adding-a-device.md). Needs no golden and no torch; takes seconds.
    """
    from parity.api import check_device as check
    from parity.reports.contract import print_checked

    checked = check(device_name, precision, k, target=target, drafter=drafter)
    print_checked(checked)
    write_json(json_file, checked.to_dict)
    sys.exit(checked.exit_code)


@click.command("new-device")
@click.argument("name")
@click.option("--numpy", "library", flag_value="numpy", default=True, help="Arrays of NumPy; the default.")
@click.option("--torch", "library", flag_value="torch", help="Tensors of PyTorch.")
@click.option("--jax", "library", flag_value="jax", help="Arrays of JAX.")
@click.option(
    "--into", type=folder, default=Path(), metavar="DIR", help="Folder to write to; the current one by default."
)
@json_option
def new_device(name: str, library: str, into: Path, json_file: Path | None) -> None:
    """Write a device that runs and its test: NAME.py and test_NAME.py. Nothing is overwritten.

    The bookkeeping is whole; what is to fill in is marked FILL IN. It keeps the contract from the start and computes
    placeholders: `parity check-device` passes, `parity diff` fails.
    """
    from parity.plain import echo
    from parity.skeleton import write_skeleton

    device, test = write_skeleton(name, library, into)
    write_json(json_file, {"device": str(device), "test": str(test), "library": library})
    here = "" if into == Path() else f" (in {into})"
    echo(f"{device}  the device; fill in what is marked FILL IN\n{test}  its test\n")
    echo(f"next{here}: parity check-device --device {name}:load")
