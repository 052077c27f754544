"""The references behind the device seam, so that the gates can be held against them too."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from transformers.utils import logging

from parity.errors import UsageError
from parity.golden.provenance import loaded
from parity.seam import Description, Tap
from references.capture import to_numpy, torch_tap
from references.hf_target import HFTarget
from references.peagle import PEagle
from references.speculation import Speculation

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def load(
    target: str | Path, drafter: str | Path, k: int, precision: str = "float32", max_positions: int | None = None
) -> Reference:
    """Load a pair of checkpoints as a `parity.seam.Device`: `--device references.seam:load`.

    Args:
        k: K, drafts per round.
        precision: `bfloat16` or `float32`.
        max_positions: rows that prompt, budget and K drafts have to fit; the smaller context where None.

    Raises:
        UsageError: an option or a checkpoint that does not fit.
    """
    if precision not in DTYPES:
        raise UsageError(f"precision: {precision!r} is unknown; there are {', '.join(DTYPES)}")
    logging.disable_progress_bar()
    dtype = DTYPES[precision]
    return Reference(Speculation(HFTarget(target, dtype), PEagle.load(drafter, dtype), k, max_positions), precision)


class Reference:
    """`parity.seam.Device` and `Poisonable` over the references' verbs: NumPy in and out."""

    def __init__(self, speculation: Speculation, precision: str):
        self.speculation, self.precision = speculation, precision

    def describe(self) -> Description:
        """What the references are."""
        speculation = self.speculation
        return Description(
            name="references",
            precision=self.precision,
            num_layers=speculation.target.config.num_hidden_layers,
            num_drafter_layers=speculation.drafter.config.num_layers,
            k=speculation.k,
            max_positions=speculation.max_positions,
            eos=speculation.eos,
            versions={name: version(name) for name in ("torch", "transformers", "safetensors", "numpy")},
            modules=tuple(loaded("references")),
        )

    def prefill(self, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap) -> int:
        """Round 0; the first token."""
        return self.speculation.prefill([int(one) for one in prompt_ids], max_new_tokens, torch_tap(tap))

    def draft(self, tap: Tap) -> np.ndarray:
        """K ids, int64."""
        return to_numpy(self.speculation.draft(torch_tap(tap)))

    def verify(self, draft_tokens: np.ndarray, tap: Tap) -> np.ndarray:
        """n+1 greedy ids, int64."""
        return to_numpy(self.speculation.verify(_ids(draft_tokens), torch_tap(tap)))

    def commit(self, draft_tokens: np.ndarray, verify_tokens: np.ndarray, tap: Tap) -> np.ndarray:
        """The ids emitted, int64."""
        return to_numpy(self.speculation.commit(_ids(draft_tokens), _ids(verify_tokens), torch_tap(tap)))

    def poison(self, value: float) -> None:
        """Put `value` into every cached row behind the lengths."""
        self.speculation.poison(value)


def _ids(tokens: np.ndarray) -> torch.Tensor:
    return torch.tensor([int(one) for one in tokens], dtype=torch.long)
