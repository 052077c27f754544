"""What every function of the library takes and refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parity.errors import UsageError

File = str | Path


def refuse_unopened(**dumps: object) -> None:
    """Raises:
    UsageError: a path or something else stands where an opened dump is due; None stands for none.
    """
    for name, dump in dumps.items():
        if dump is not None and not hasattr(dump, "manifest"):
            opens = "open_golden" if name == "golden" else "read_dump"
            raise UsageError(f"{name} is a {type(dump).__name__}: parity.{opens}(FOLDER) opens what is due there")


def path_or_none(file: File | None) -> Path | None:
    """A file as a path; None stays None."""
    return None if file is None else Path(file)


def text_or_none(file: Any) -> str | None:
    """A file as text, as a policy is named; None stays None."""
    return None if file is None else str(file)
