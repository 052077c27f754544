"""The rotary embedding alone: config, tables and kernel of a pass, without weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from parity.device.checkpoint import Described
from parity.device.config import Attention, open_config, read_attention
from parity.device.drafter_config import open_drafter
from parity.device.engines import AnyEngine
from parity.device.kernels import rope
from parity.device.kernels.step import make_step
from parity.device.rows import refuse_outside


def read_rotary(folder: Path, side: str, positions: np.ndarray) -> tuple[Attention, int]:
    """Heads and RoPE of this side's config, and how many positions it has, of which these have to be some."""
    described = Described(folder)
    fields = open_config(described, "gpt_oss") if side == "target" else open_drafter(described)
    attention, count = read_attention(fields), fields.integer("max_position_embeddings")
    refuse_outside(side, "position", positions, count)
    return attention, count


def rotate(folder: Path, side: str, x: np.ndarray, positions: np.ndarray, engine: AnyEngine) -> np.ndarray:
    """Rotate x [S, N, D], float32, at positions [S] as this side's q and k; see `parity.seam.Rotary`."""
    attention, count = read_rotary(folder, side, positions)
    cos, sin = (engine.array(one) for one in rope.tables(attention.rope, attention.head_dim, count))
    at = engine.array(positions.astype(np.int32)[None])
    step = make_step(at, at, (cos, sin), 1)
    rotated: np.ndarray = engine.host(rope.rotate(engine.array(x[None]), step.cos, step.sin))[0]
    return rotated
