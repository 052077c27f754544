"""What vLLM recorded, step by step: one file each, the rows of all requests in one tensor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import safe_open

from parity.errors import UsageError
from parity.golden import shards


@dataclass(frozen=True)
class Step:
    """One step of vLLM: the requests in it, in row order, and its tensors, all requests' rows together."""

    number: int
    requests: tuple[str, ...]
    block_size: int
    tensors: dict[str, np.ndarray]

    def rows(self, name: str, place: int) -> np.ndarray:
        """The rows of the request at this place; taps have the target's rows."""
        side = "target" if name.startswith("target.") or name == "drafter.taps" else "drafter"
        starts = self.tensors[f"{side}.starts"]
        return self.tensors[name][starts[place] : starts[place + 1]]

    def verified(self, place: int) -> np.ndarray:
        """The scores that vLLM chose from: those of the request's sampled rows."""
        first, end = self.tensors["target.starts"][place : place + 2]
        rows = self.tensors["verify.rows"]
        logits: np.ndarray = self.tensors["verify.logits"][(rows >= first) & (rows < end)]
        return logits

    def part(self, name: str, place: int) -> np.ndarray:
        """The request's share of a tensor that has as many rows for each request."""
        return np.split(self.tensors[name], len(self.requests))[place]

    @property
    def passes(self) -> int:
        """How often the drafter ran: once where it drafts in parallel, else once a draft."""
        return 1 + sum(name.startswith("chain.") and name.endswith(".input_ids") for name in self.tensors)

    def named(self, *parts: str) -> list[str]:
        """The tensors that are one stage of a layer or of the whole side."""
        return [name for name in self.tensors if name.startswith(parts)]


def read_steps(folder: Path) -> list[Step]:
    """Every step of a recording, in order.

    Raises:
        UsageError: there is none, or a file is no safetensors file.
    """
    paths = sorted(folder.glob("step-*.safetensors"))
    if not paths:
        raise UsageError(f"vLLM recorded no step in {folder}")
    found = []
    for number, path in enumerate(paths):
        with safe_open(path, framework="np") as file:
            said = file.metadata()
        # vLLM appends a random part to the id of a request.
        requests = tuple(name.partition("-")[0] for name in said["requests"].split())
        found.append(Step(number, requests, int(said["block_size"]), shards.read(path)))
    return found
