"""A night's beginning: a new folder with its plan, or the folder of one that was interrupted."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from parity.errors import UsageError
from parity.golden.provenance import now
from parity.nightly.folder import PARTS, NightFolder
from parity.nightly.matrix import Matrix
from parity.nightly.records import Cell, Night


def begin(path: Path | None, home: Path, matrix: Matrix, cells: tuple[Cell, ...], engine: str) -> NightFolder:
    """The folder of a night.

    Args:
        path: a new folder, or that of an interrupted night; below `home` where None.

    Raises:
        UsageError: the folder is another matrix's or another commit's, or none of a night.
    """
    if path is not None and re.match(r"[a-z][a-z0-9+.-]+:/", str(path)):
        raise UsageError(
            f"--out {path} is an URL: a night's folder lies on this machine; --history and --goldens take URLs"
        )
    name = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")[:-3]
    commit, dirty = _commit()
    if path is not None and path.exists():
        return _resumed(NightFolder(path), matrix, commit, dirty)
    night = Night(
        name=name,
        started=now(),
        commit=commit,
        dirty=dirty,
        matrix=str(matrix.path),
        matrix_digest=matrix.digest,
        engine=engine,
        machine=f"{platform.machine()}, {os.cpu_count()} cores",
        cells=cells,
    )
    return NightFolder.start(path or home / "nights" / name, night)


def _resumed(folder: NightFolder, matrix: Matrix, commit: str, dirty: bool) -> NightFolder:
    night = folder.night
    if night.matrix_digest != matrix.digest:
        raise UsageError(
            f"{folder.path} is a night of another matrix ({night.matrix}, or what it was then); choose another --out"
        )
    if (night.commit, night.dirty) != (commit, dirty):
        states = [
            f"{one[:12] or 'no commit'}{' with changes' if changed else ''}"
            for one, changed in ((night.commit, night.dirty), (commit, dirty))
        ]
        raise UsageError(
            f"{folder.path} was begun at {states[0]}, this is {states[1]}: cells of two commits are no night; choose another --out"
        )
    for part in PARTS:
        (folder.path / part).mkdir(exist_ok=True)
    return folder


def _commit() -> tuple[str, bool]:
    """The commit of the working directory, and whether tracked files differ from it; ('', False) outside a repository."""
    try:
        head = _git("rev-parse", "HEAD")
        return head, bool(_git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return "", False


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.strip()
