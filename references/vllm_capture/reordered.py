"""Other roundings of the same checkpoints: the intermediate axis of every MLP in another order.

Nothing changes in exact arithmetic, and no recorded stage has that axis. vLLM's CPU kernels give a row the same bits in
any batch, so this is what draws its rounding errors anew: in the first MLP's sums, and in all that comes behind them.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

EXPERTS = "mlp.experts."
"""gpt-oss keeps gate and up of all experts in one tensor, columns in turn."""


def reordered(checkpoint: Path, number: int, folder: Path) -> Path:
    """The checkpoint in its order number `number`; 0 is its own, and it is the checkpoint itself.

    Args:
        folder: where the copy goes; what is no MLP weight stays as it is.
    """
    if number == 0:
        return checkpoint
    folder.mkdir()
    for path in sorted(checkpoint.iterdir()):
        if path.suffix != ".safetensors":
            (folder / path.name).symlink_to(path.resolve())
            continue
        weights = load_file(path)
        save_file(
            {name: _reordered(name, weight, number) for name, weight in weights.items()},
            folder / path.name,
            {"format": "pt"},
        )
    return folder


def _reordered(name: str, weight: torch.Tensor, number: int) -> torch.Tensor:
    axis = _axis(name)
    if axis is None:
        return weight
    pairs = EXPERTS + "gate_up_proj" in name
    count = weight.shape[axis] // (2 if pairs else 1)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(number))
    if pairs:
        order = torch.stack([2 * order, 2 * order + 1], dim=1).flatten()
    return weight.index_select(axis, order).contiguous()


def _axis(name: str) -> int | None:
    """Which axis of a weight is the intermediate one; None for none."""
    last = name.rpartition(EXPERTS)[2] if EXPERTS in name else name.rpartition("mlp.")[2] if "mlp." in name else ""
    return {
        "gate_up_proj": 2,
        "gate_up_proj_bias": 1,
        "down_proj": 1,
        "gate_proj.weight": 0,
        "gate_proj.bias": 0,
        "up_proj.weight": 0,
        "up_proj.bias": 0,
        "down_proj.weight": 1,
    }.get(last)
