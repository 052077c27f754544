"""The references' rotary embeddings without weights: Hugging Face's for the target, our own for the drafter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRotaryEmbedding, apply_rotary_pos_emb

from parity.errors import UsageError
from parity.references import rope
from parity.references.checkpoint import TARGET, read_config
from parity.references.drafter_config import DrafterConfig
from parity.references.drafting import drafter_config
from parity.references.hf_checkpoint import target_config


@torch.no_grad()
def rotate(folder: Path, side: str, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Rotate x [S, N, D], float32, at positions [S] as this side's q and k; see `parity.seam.Rotary`.

    Raises:
        UsageError: the config's schedule is not known in full, or a position lies outside its maximum.
    """
    kind = {"target": _target, "drafter": _drafter}[side]
    return kind(Path(folder), torch.from_numpy(x)[None], torch.from_numpy(positions)[None])[0].numpy()


def _target(folder: Path, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    rope.read_rope(read_config(folder, TARGET))
    config = target_config(folder)
    _refuse_outside(positions, config.max_position_embeddings)
    cos, sin = GptOssRotaryEmbedding(config)(x, positions)
    turned: torch.Tensor = apply_rotary_pos_emb(x, x, cos, sin, unsqueeze_dim=2)[0]
    return turned


def _drafter(folder: Path, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    config = drafter_config(folder)
    if not isinstance(config, DrafterConfig):
        raise UsageError(f"{folder} is a {config.family} drafter: it rotates nothing")
    _refuse_outside(positions, config.max_positions)
    return rope.rotate(x, *rope.tables(positions, *rope.schedule(config.rope, config.head_dim)))


def _refuse_outside(positions: torch.Tensor, end: int) -> None:
    if positions.min() < 0 or positions.max() >= end:
        raise UsageError(f"positions {positions.min()} to {positions.max()} lie outside 0 to {end - 1}")
