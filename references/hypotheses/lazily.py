"""torch, and what imports it, at the first use of one of their names: the catalogue is read without them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import functional as F

    from parity.references import rope
    from parity.references.chain import StepLoop
    from parity.references.hf_target import HFTarget
    from parity.references.peagle import PEagle

    Loop = StepLoop[HFTarget, PEagle]
    """Of any family; what only one has, hypotheses of that family ask for."""
else:

    class Lazy:
        """A module that is imported when it is asked for something."""

        def __init__(self, name: str):
            self.name = name

        def __getattr__(self, attribute: str) -> Any:
            return getattr(import_module(self.name), attribute)

    torch, F = Lazy("torch"), Lazy("torch.nn.functional")
    rope = Lazy("parity.references.rope")
    Tensor = Loop = Any

__all__ = ["F", "Loop", "Tensor", "rope", "torch"]
