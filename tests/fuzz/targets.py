"""What is fuzzed: every reader of foreign bytes, and the command line. Each may refuse bytes in one sentence."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import click
import numpy as np

from parity.cli import cli
from parity.errors import ParityError
from parity.golden import shards
from parity.golden.consistent import refuse_contradictions  # noqa: F401  loaded here, so that it is instrumented
from parity.golden.digests import sealed
from parity.golden.reading import checked_manifest
from parity.imports import polygraphy
from parity.imports.arrays import members
from parity.imports.names import pattern, read_map
from parity.logs.scan import scan
from parity.nightly.expand import cells
from parity.nightly.matrix import read_matrix
from parity.policy import read_policy

FOLDER = TemporaryDirectory(prefix="parity-fuzz-")
QUIET = (
    "inspect",
    "taps",
    "policy",
    "scan-log",
    "diff",
    "gate",
    "run",
    "export",
    "import",
    "seal",
    "history",
    "report",
    "shapes",
)
"""Commands that make nothing without a golden."""


def placed(data: bytes) -> Path:
    """A file of these bytes."""
    path = Path(FOLDER.name) / "file"
    path.write_bytes(data)
    return path


def manifest(data: bytes) -> None:
    """As written, and with a digest taken anew."""
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError):
        raw = None
    checked_manifest(sealed(raw) if isinstance(raw, dict) else data, Path("manifest.json"))


def safetensors(data: bytes) -> None:
    """Every tensor, read."""
    for array in shards.read(placed(data)).values():
        shards.digest(np.ascontiguousarray(array))


def policy(data: bytes) -> None:
    """Read, and asked for a stage."""
    read_policy(placed(data), "bfloat16").row("target.logits", "chained")


def name_map(data: bytes) -> None:
    """Read, and every pattern tried on a name made to run long."""
    for row in read_map(str(placed(data))).rows:
        pattern(row.name).fullmatch("a" * 4096 + "!")


def matrix(data: bytes) -> None:
    """Read, and its cells."""
    cells(read_matrix(placed(data)))


def arrays(data: bytes) -> None:
    """An .npy or .npz."""
    for read in members(io.BytesIO(data), "file").values():
        read()


def results(data: bytes) -> None:
    """Polygraphy's, with arrays."""
    for one in polygraphy.read([placed(data)], lambda source, name: None):
        one.load()


def log(data: bytes) -> None:
    """A log."""
    scan([("log", placed(data))])


def arguments(data: bytes) -> None:
    """A command line, in an empty folder."""
    words = [
        word
        for word in data.decode(errors="replace").split("\0")
        if "/" not in word and ".." not in word and word != "-"
    ]
    if len(words) > 32 or not set(words) & {*QUIET, "--help", "--version"} or set(words) & {*cli.commands} - {*QUIET}:
        return
    here = Path.cwd()
    with (
        patch.dict(os.environ, PARITY_HOME=FOLDER.name),
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        try:
            os.chdir(FOLDER.name)
            cli.main(words, standalone_mode=False)
        except (click.ClickException, click.exceptions.Abort, SystemExit, OSError):
            pass
        finally:
            os.chdir(here)


TARGETS: dict[str, Callable[[bytes], None]] = {
    one.__name__: one for one in (manifest, safetensors, policy, name_map, matrix, arrays, results, log, arguments)
}


def refused_or_read(name: str, data: bytes) -> None:
    """Anything but a sentence is raised."""
    try:
        TARGETS[name](data)
    except ParityError as error:
        assert "\n" not in str(error), str(error)
