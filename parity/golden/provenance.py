"""Where tensors come from: digests of checkpoints, prompts and sources, and the producer's record."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from parity.errors import UsageError
from parity.golden.manifest import Checkpoint, Producer


def digest_files(paths: Iterable[Path]) -> str:
    """sha256 over names and bytes of files in the order given; '' for none.

    Raises:
        UsageError: a file cannot be read.
    """
    total, found = hashlib.sha256(), False
    for path in paths:
        try:
            with path.open("rb") as file:
                total.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise UsageError(f"{path} cannot be read ({error.strerror})") from None
        found = True
    return total.hexdigest() if found else ""


def checkpoint(folder: Path) -> Checkpoint:
    """Digest a checkpoint folder.

    Raises:
        UsageError: it has no config.json.
    """
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} is no checkpoint: it has no config.json")
    return Checkpoint(
        path=_portable(folder),
        config_digest=digest_files([folder / "config.json"]),
        weights_digest=digest_files(sorted(folder.glob("*.safetensors"))),
        tokenizer_digest=digest_files(sorted(folder.glob("tokenizer*.json"))),
        chat_template_digest=digest_files(sorted(folder.glob("chat_template.jinja"))),
    )


def _portable(folder: Path) -> str:
    """Relative to the working directory where it lies below it."""
    absolute = folder.resolve()
    return os.path.relpath(absolute) if absolute.is_relative_to(Path.cwd()) else str(absolute)


def producer(name: str, modules: Iterable[str], packages: Iterable[str], threads: int) -> Producer:
    """The record of who computed: loaded modules by name, their source's digest, package versions."""
    modules = tuple(sorted(modules))
    files = [Path(sys.modules[module].__file__) for module in modules if getattr(sys.modules[module], "__file__", None)]
    versions = {package: metadata.version(package) for package in packages}
    return Producer(
        name=name,
        versions={"python": platform.python_version(), **versions},
        modules=modules,
        source_digest=digest_files(files),
        threads=threads,
        platform=f"{platform.system()} {platform.machine()}",
    )


def loaded(*roots: str) -> list[str]:
    """Loaded modules of these packages."""
    return [name for name in sys.modules if name.split(".")[0] in roots]


def now() -> str:
    """The time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")
