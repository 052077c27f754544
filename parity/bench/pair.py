"""The checkpoints of a bench: as they are, or with room for longer contexts and more drafts than they were made for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from parity.files import config_of

ROOM = "max_position_embeddings"
DRAFTS = "num_parallel_positions"


def with_room(pair: tuple[Path, Path], positions: int, k: int, folder: Path) -> tuple[tuple[Path, Path], list[str]]:
    """The pair with room for so many positions and drafts, and what was changed for that, in words.

    Its weights are what they were: links to the same files. What it was not trained for it does not do well, so that
    acceptance there says nothing of a model that was; what it costs is the same.
    """
    made, said = [], []
    for side, checkpoint in zip(("target", "drafter"), pair, strict=True):
        config = config_of(checkpoint)
        raised = _raised(config, {ROOM: positions, DRAFTS: k})
        made.append(_copied(checkpoint, folder / side, config | raised) if raised else checkpoint)
        said += [f"{side}: {key} {config[key]} raised to {value}" for key, value in raised.items()]
    return (made[0], made[1]), said


def _raised(config: dict[str, Any], needed: dict[str, int]) -> dict[str, int]:
    return {key: least for key, least in needed.items() if isinstance(config.get(key), int) and config[key] < least}


def _copied(checkpoint: Path, to: Path, config: dict[str, Any]) -> Path:
    """A folder of links to a checkpoint's files, with a config.json of its own."""
    to.mkdir(parents=True)
    for file in checkpoint.iterdir():
        if file.name != "config.json":
            os.symlink(file.resolve(), to / file.name)
    (to / "config.json").write_text(json.dumps(config))
    return to
