"""Edits of a dump's manifest, by hand or by somebody who takes the digest anew."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parity.golden.digests import sealed
from parity.golden.manifest import FILE

Edit = Callable[[dict[str, Any]], object]


def edited(golden: Path, to: Path, edit: Edit, seal: bool = True) -> Path:
    """A copy of a dump (its shards linked) with an edited manifest."""
    shutil.copytree(golden, to, copy_function=_linked)
    rewrite(to, edit, seal)
    return to


def rewrite(folder: Path, edit: Edit, seal: bool = True) -> None:
    """Edit a manifest in place."""
    raw = json.loads((folder / FILE).read_bytes())
    edit(raw)
    (folder / FILE).write_bytes(sealed(raw) if seal else json.dumps(raw).encode())


def _linked(source: str, to: str) -> None:
    if source.endswith(FILE):
        shutil.copy(source, to)
    else:
        Path(to).hardlink_to(source)
