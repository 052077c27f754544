"""Token embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.device.kernels.program import program


@program
def embed(ids: Any, table: Any) -> Any:
    """ids [B, S] and table [V, H] to [B, S, H]."""
    return np.take(table, ids, axis=0)
