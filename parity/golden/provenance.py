"""Where tensors come from: digests of checkpoints, prompts and sources, and the producer's record."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from parity.errors import UsageError
from parity.golden.checkpoints import Checkpoint, Model
from parity.golden.digests import digest_files
from parity.golden.producer import Producer
from parity.golden.sources import digest_of, digests
from parity.golden.synthetic import NOTE, forced_by

CONFIGS = ("config.json", "generation_config.json")
"""The second one, where there is one, says which tokens end a generation."""


def checkpoint(folder: Path) -> Checkpoint:
    """Digest a checkpoint folder.

    Raises:
        UsageError: it has no config.json.
    """
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} is no checkpoint: it has no config.json")
    return Checkpoint(
        path=os.path.realpath(folder),
        config_digest=digest_files(path for name in CONFIGS if (path := folder / name).is_file()),
        weights_digest=digest_files(sorted(folder.glob("*.safetensors"))),
        tokenizer_digest=digest_files(sorted(folder.glob("tokenizer*.json"))),
        chat_template_digest=digest_files(sorted(folder.glob("chat_template.jinja"))),
    )


def with_constants(model: Model, constants: Mapping[str, Mapping[str, Any]]) -> Model:
    """The same pair, with what another producer read of its config.json files: nothing where it does not say.

    Raises:
        UsageError: a constant is neither number, flag, word nor a list of them.
    """
    try:
        sides = {
            side: Checkpoint(**{**getattr(model, side).model_dump(), "constants": dict(constants.get(side, {}))})
            for side in ("target", "drafter")
        }
    except (ValidationError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"constants of config.json: a number, true or false, a word or a list of them is needed ({error})"
        ) from None
    return model.model_copy(update=sides)


def handed_on(model: Model, root: Path) -> Model:
    """The same pair, its folders relative to `root`: for a dump that lies below `root` and is handed on with it.

    Raises:
        ValueError: a checkpoint does not lie below it.
    """
    sides = {side: getattr(model, side) for side in ("target", "drafter")}
    paths = {side: Path(one.path).resolve().relative_to(root.resolve()).as_posix() for side, one in sides.items()}
    return model.model_copy(update={side: one.model_copy(update={"path": paths[side]}) for side, one in sides.items()})


def producer(
    name: str,
    modules: Iterable[str],
    packages: Iterable[str],
    threads: int,
    versions: Mapping[str, str] = MappingProxyType({}),
    notes: Mapping[str, str] = MappingProxyType({}),
) -> Producer:
    """The record of who computed: modules by name, each one's source and all of it digested, package versions.

    `versions` and `notes` are what a device says of itself; see `parity.seam.Description`. What of the environment
    forces acceptance is a note of ours.
    """
    from importlib import metadata  # 20 ms that reading a dump does not need

    modules = tuple(sorted(modules))
    sources = digests(modules)
    return Producer(
        name=name,
        versions={
            "python": platform.python_version(),
            **{package: metadata.version(package) for package in packages},
            **versions,
        },
        modules=modules,
        source_digest=digest_of(sources),
        threads=threads,
        platform=f"{platform.system()} {platform.machine()}",
        sources=sources,
        notes={**notes, **({NOTE: forced} if (forced := forced_by()) else {})},
    )


def now() -> str:
    """The time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")
