"""Which drafter a checkpoint holds, and the loop that goes with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from parity.golden.manifest import Family
from parity.references.chain import ChainLoop
from parity.references.drafter_config import Eagle3Config, PEagleConfig
from parity.references.drafter_formats import placeholder, read_drafter
from parity.references.eagle3 import Eagle3
from parity.references.hf_target import HFTarget
from parity.references.loop import SpeculativeLoop
from parity.references.parallel import ParallelLoop
from parity.references.peagle import PEagle
from parity.references.target import Target


def is_chain(drafter: str | Path) -> bool:
    """Whether a drafter drafts step by step (EAGLE-3): it has one layer and no placeholder token.

    P-EAGLE drafters share the architecture's name and most keys; the placeholder is theirs alone.
    """
    raw = read_drafter(Path(drafter))
    return placeholder(raw) is None and raw.get("num_hidden_layers") == 1


def drafter_config(drafter: str | Path) -> Eagle3Config | PEagleConfig:
    """The config of either kind."""
    return (Eagle3Config if is_chain(drafter) else PEagleConfig).read(drafter)


def family(config: Eagle3Config | PEagleConfig) -> Family:
    """The drafter's family, as a golden's manifest has it."""
    return "eagle-3" if isinstance(config, Eagle3Config) else "p-eagle"


def load_loop(
    target: str | Path,
    drafter: str | Path,
    dtype: torch.dtype,
    k: int,
    max_positions: int | None = None,
    oracle: Callable[[str | Path, torch.dtype], Target] = HFTarget,
) -> SpeculativeLoop[Any, Any]:
    """The speculative loop over a pair of checkpoints, P-EAGLE's or EAGLE-3's by the drafter's config.

    Args:
        oracle: loads the target: `HFTarget`, or what has its methods.

    Raises:
        UsageError: a checkpoint or K does not fit.
    """
    loaded = oracle(target, dtype)
    if not is_chain(drafter):
        return ParallelLoop(loaded, PEagle.load(drafter, dtype), k, max_positions)
    return ChainLoop(loaded, Eagle3.load(drafter, dtype, loaded.embeddings), k, max_positions)
