"""What makes a port a device: its tensors tapped where they are, its verbs whole, its recordings a run (docs/ports.md).

Nothing here imports torch or jax: whoever hands a tensor over has done so.
"""

from __future__ import annotations

from parity.adapters.convert import overwrite, replaced, to_numpy
from parity.adapters.hooks import Hooked, hook_modules
from parity.adapters.pieces import read_piece, read_tensors, write_run
from parity.adapters.port import PortTap, Shows
from parity.adapters.sketching import hand_sketched
from parity.adapters.transaction import transactional
from parity.adapters.width import FixedWidth

__all__ = [
    "FixedWidth",
    "Hooked",
    "PortTap",
    "Shows",
    "hand_sketched",
    "hook_modules",
    "overwrite",
    "read_piece",
    "read_tensors",
    "replaced",
    "to_numpy",
    "transactional",
    "write_run",
]
