"""What ships and is taken where nothing is named: the tiny pair, and the configs of the published models."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from parity.errors import UsageError


def tiny(part: str) -> Path:
    """A part of the tiny pair that ships with the project: target, drafter, prompts/chat.jsonl.

    Raises:
        UsageError: the fixtures are not installed.
    """
    folder = fixtures()
    if folder is None:
        raise UsageError("the tiny pair (fixtures/) is not installed; name --target, --drafter and --prompts")
    return folder / "tiny" / part


def scaled_pair(target: Path, drafter: Path, folder: Path) -> tuple[Path, Path]:
    """Both checkpoints once more in this folder, with scales for quantised caches."""
    with_scales = import_module("parity.fixtures.scaled").with_scales
    return with_scales(target, folder / "target", "target"), with_scales(drafter, folder / "drafter", "drafter")


def fixtures() -> Path | None:
    """The folder of the fixtures; None where they are not installed."""
    spec = find_spec("parity.fixtures")
    return Path(spec.origin).parent if spec and spec.origin else None


def published_configs() -> Path | None:
    """Folder of the published models' configs; None where the fixtures are not installed."""
    folder = fixtures()
    return folder and folder / "configs"


def published_pair(model: str) -> tuple[Path, Path]:
    """Target and drafter of a pair whose configs ship with the project: `tiny`, `20b`, `120b`.

    Raises:
        UsageError: the fixtures are not installed.
    """
    if model == "tiny":
        return tiny("target"), tiny("drafter")
    if (configs := published_configs()) is None:
        raise UsageError(f"the configs of {model} (fixtures/) are not installed; name --target and --drafter")
    return configs / f"gpt-oss-{model}", configs / f"p-eagle-{model}"
