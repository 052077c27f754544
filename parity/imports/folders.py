"""The files of a dump: nothing behind a link, nothing that executes code, nothing passed over without a word."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from parity import limits
from parity.errors import UsageError

BESIDE = (".json", ".jsonl", ".toml", ".txt", ".md", ".log", ".csv", ".yaml", ".yml")
"""Kinds of files that lie beside tensors and hold none."""

EXECUTED = (".pkl", ".pickle", ".dill", ".joblib", ".cloudpickle")


def below(root: Path) -> list[Path]:
    """Every file of a folder, in the order of their paths; a file named by itself is the only one.

    Raises:
        UsageError: one is a link, which could lead anywhere, or executes what it holds when it is read.
    """
    found = sorted(islice(root.rglob("*"), limits.ARCHIVE_MEMBERS + 1)) if root.is_dir() else [root]
    if len(found) > limits.ARCHIVE_MEMBERS:
        raise UsageError(f"{root} holds more than {limits.ARCHIVE_MEMBERS} files")
    for path in found:
        if path != root and path.is_symlink():
            raise UsageError(f"{path} is a link, and a dump is read without following any: put there what it points to")
        refuse_executed(path)
        if not (path.is_file() or path.is_dir()):
            raise UsageError(f"{path} is no regular file")
    return [path for path in found if path.is_file()]


def refuse_executed(path: Path) -> None:
    """Refuse a kind of file that executes what it holds when it is read, by its name.

    Raises:
        UsageError: it is one.
    """
    if path.suffix.lower() in EXECUTED:
        raise UsageError(f"{path} is a pickle: reading it could execute code; save .npy, .npz, .safetensors or .pt")


def of_kind(root: Path, kinds: Sequence[str]) -> list[Path]:
    """Its files of these suffixes.

    Raises:
        UsageError: there is none, or something that is neither such a file nor plain text lies among them; see `below`.
    """
    files = below(root)
    for path in files:
        if path.suffix not in (*kinds, *BESIDE):
            raise UsageError(f"{path} is none of {', '.join(kinds)}")
    found = [path for path in files if path.suffix in kinds]
    if not found:
        raise UsageError(f"{root} holds none of {', '.join(kinds)}")
    return found
