"""gpt-oss's mixture of experts in PyTorch: rows sorted by expert, one grouped matrix product for all experts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from parity.device.config import TargetConfig

GROUPED = (9, 0)
"""Compute capability from which PyTorch has a grouped kernel on CUDA, in bfloat16."""
ALIGNED = 16
"""Bytes of which the rows of both operands have to be multiples: the kernel refuses other strides."""


def top_k(logits: Tensor, k: int) -> Tensor:
    """The k largest of logits [B, W, E] in descending order, the lower id first on a tie: int64 [B, W, k]."""
    return logits.sort(dim=-1, descending=True, stable=True).indices[..., :k]


def mixture(x: Tensor, logits: Tensor, chosen: Tensor, weights: dict[str, Any], config: TargetConfig) -> Tensor:
    """The chosen experts [B, W, k] of x [B, W, H], mixed by the softmax of their logits; summed in float32."""
    shares = torch.softmax(logits.gather(-1, chosen).float(), dim=-1).reshape(-1, 1)
    ids, each = chosen.reshape(-1), chosen.shape[-1]
    order = ids.argsort(stable=True)
    sorted_ids = ids[order]
    ends = torch.bincount(ids, minlength=config.experts).cumsum(0)
    inner = grouped(x.flatten(0, 1)[order // each], weights["gate_up"], ends) + weights["gate_up_bias"][sorted_ids]
    outputs = grouped(clamped_swiglu(inner, config), weights["down"], ends) + weights["down_bias"][sorted_ids]
    placed = torch.empty_like(outputs, dtype=torch.float32)
    placed[order] = outputs.float()
    mixed: Tensor = (placed * shares).reshape(*chosen.shape, -1).sum(-2)
    return mixed.to(x.dtype)


def clamped_swiglu(gate_up: Tensor, config: TargetConfig) -> Tensor:
    """(up + 1) * gate * sigmoid(alpha * gate), gate <= limit, |up| <= limit: [T, 2I] to [T, I]; float32, one cast."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    gate, up = gate.clamp(max=config.limit), up.clamp(-config.limit, config.limit)
    return ((up + 1) * gate * torch.sigmoid(config.alpha * gate)).to(gate_up.dtype)


def grouped(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Each group of rows times its own matrix: rows [T, in] sorted by group, matrices [E, in, out] to [T, out].

    Args:
        ends: int64 [E], the row behind each group's last.
    """
    if has_kernel(rows, matrices):
        return functional.grouped_mm(rows, matrices, offs=ends.to(torch.int32))
    return one_by_one(rows, matrices, ends)


def has_kernel(rows: Tensor, matrices: Tensor) -> bool:
    """Whether PyTorch has one kernel for all groups of such rows."""
    if any(width * rows.element_size() % ALIGNED for width in matrices.shape[1:]):
        return False
    if rows.is_cuda:
        return rows.dtype == torch.bfloat16 and torch.cuda.get_device_capability(rows.device) >= GROUPED
    return hasattr(functional, "grouped_mm")


def one_by_one(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """The same by a product for each group that has rows."""
    bounds = [0, *ends.tolist()]
    spans = enumerate(pairwise(bounds))
    return torch.cat([rows[begin:end] @ matrices[group] for group, (begin, end) in spans if end > begin])
