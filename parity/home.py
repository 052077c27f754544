"""Where everything goes that is given no folder."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path

from parity.errors import UsageError

LONGEST = 160
"""Characters of a name that a folder is given: a device with many options has a long one."""
VARIABLE, DEFAULT = "PARITY_HOME", ".parity"


def home() -> Path:
    """$PARITY_HOME, or ./.parity where it is not set.

    Raises:
        UsageError: it is set to nothing.
    """
    named = os.environ.get(VARIABLE, DEFAULT)
    if not named.strip():
        raise UsageError(f"${VARIABLE} is set to an empty name: name a folder, or unset it for {DEFAULT} here")
    return Path(named)


def fresh(kind: str, name: str) -> Path:
    """A new folder name under `home()`; `kind` is goldens or runs. What a path cannot hold in `name` becomes `-`."""
    name = re.sub(r"[^\w.,=+@-]+", "-", name)[:LONGEST]
    return home() / kind / f"{stamp()}-{name}"


def stamp() -> str:
    """A name that sorts by time: to the microsecond, then the process, as two that start together share even that."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}-{os.getpid()}"
