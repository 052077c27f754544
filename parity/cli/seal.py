"""`parity seal`: the digest of a dump that another program, or an older parity, wrote."""

from __future__ import annotations

from pathlib import Path

import click

from parity.plain import echo


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
def seal(directory: Path) -> None:
    """Give the dump in DIRECTORY the digest of its manifest, once it agrees with itself and its tensors.

    For dumps of an older parity and for programs that write dumps of their own. An edit by hand is sealed as well:
    seal only what you trust.
    """
    from parity.golden.store import seal as sealed

    echo(f"{directory} is sealed: {len(sealed(directory).manifest.tensors)} tensors")
