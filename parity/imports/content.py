"""What a golden holds, as rows that a tensor of any layout can be compared with, all against all.

A row keeps 128 numbers at the most: sums of its elements under random signs, which keep angles (count sketch; Charikar,
Chen and Farach-Colton, 2002). A small angle is kept to a tenth of itself, so the nearest stays the nearest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from parity import limits
from parity.errors import UsageError
from parity.golden.views import DumpView
from parity.stages import Named

Rows = NDArray[np.float32]
KEPT = 128
ADDED = " + residual"
"""Behind the name of an attention output that the residual stream was added to already: no stage, but ports have it."""


@dataclass(frozen=True)
class Known:
    """One tensor of the golden.

    Args:
        stage: its full name, or that of `attn_out` and `ADDED`.
        sizes: of its axes.
        first: its first row in the rows of all that have its features.
    """

    prompt: int
    round: int
    stage: str
    named: Named
    sizes: tuple[int, ...]
    first: int

    @property
    def rows(self) -> int:
        """How many it has."""
        return self.sizes[0]

    @property
    def template(self) -> str:
        """Its name with a field for each of its coordinates that are in it."""
        return self.named.stage.template

    @property
    def coordinates(self) -> dict[str, int]:
        """What tells it from others of its kind; numbers in a tensor's name may say each."""
        numbers = {"round": self.round, "prompt": self.prompt}
        return numbers if self.named.layer is None else numbers | {"l": self.named.layer}

    def __str__(self) -> str:
        return f"{self.stage.removesuffix(ADDED)}, prompt {self.prompt}, round {self.round}"


@dataclass
class Shelf:
    """All tensors whose rows have the same axes of the same sizes."""

    known: list[Known] = field(default_factory=list)
    parts: list[Rows] = field(default_factory=list)
    count: int = 0

    def add(self, prompt: int, round_: int, stage: str, named: Named, values: NDArray[np.generic]) -> None:
        """Put one tensor in."""
        self.known.append(Known(prompt, round_, stage, named, values.shape, self.count))
        self.parts.append(sketched(values.reshape(len(values), -1)))
        self.count += len(values)

    @cached_property
    def rows(self) -> Rows:
        """All rows under each other."""
        return np.concatenate(self.parts)

    @cached_property
    def norms(self) -> NDArray[np.float32]:
        """Their lengths, [R]."""
        lengths: NDArray[np.float32] = np.sqrt(np.square(self.rows).sum(axis=1)) + 1e-30
        return lengths


Features = tuple[tuple[str, int], ...]
"""Axes of a row, by letter and size."""


@dataclass(frozen=True)
class Content:
    """All of a golden: stages of numbers by what a row is made of, whole numbers by their shape without axes of 1."""

    numbers: dict[Features, Shelf]
    choices: dict[tuple[int, ...], list[tuple[Known, NDArray[np.int64]]]]


def content(golden: DumpView) -> Content:
    """What a golden holds.

    Raises:
        UsageError: more rows than `limits.PAIRED_ROWS`.
    """
    made, total = Content({}, {}), 0
    for prompt, round_, stage, named, values in _tensors(golden):
        total += len(values)
        if total > limits.PAIRED_ROWS:
            raise UsageError(
                f"{golden.folder} has more than {limits.PAIRED_ROWS} rows to pair with: take a golden of fewer prompts"
            )
        features = tuple(zip(named.stage.axes[1:], values.shape[1:], strict=True))
        if named.stage.exact:
            known, held = Known(prompt, round_, stage, named, values.shape, 0), values.squeeze().astype(np.int64)
            made.choices.setdefault(held.shape, []).append((known, held))
        elif len(values) and prod(values.shape[1:]):
            made.numbers.setdefault(features, Shelf()).add(prompt, round_, stage, named, values)
    return made


def _tensors(golden: DumpView) -> Iterator[tuple[int, int, str, Named, NDArray[np.generic]]]:
    """Every stage, and what is between the two halves of each layer: `out` without `ffn_out`."""
    for variant, prompt, round_, stage in golden.rows:
        named = golden.declared[stage]
        if variant != "float32":
            continue
        values = golden.contents("float32", prompt, round_, stage)
        if values is None:
            continue
        yield prompt, round_, stage, named, values
        inner = stage.removesuffix(".out") + ".ffn_out"
        ffn = golden.contents("float32", prompt, round_, inner) if named.stage.part == "out" else None
        if ffn is not None and ffn.shape == values.shape:
            name = stage.removesuffix(".out") + ".attn_out"
            yield prompt, round_, name + ADDED, golden.declared[name], values - ffn


def sketched(rows: NDArray[np.generic]) -> Rows:
    """rows [R, F] as [R, 128], or as they are where F is no more."""
    wide = rows.astype(np.float32)
    if wide.shape[1] <= KEPT:
        return wide
    order, signs = _buckets(wide.shape[1])
    padded = np.zeros((len(wide), len(order)), np.float32)
    padded[:, : wide.shape[1]] = wide
    sums: Rows = (padded[:, order] * signs).reshape(len(wide), KEPT, -1).sum(axis=-1)
    return sums


@lru_cache(maxsize=8)
def _buckets(features: int) -> tuple[NDArray[np.intp], Rows]:
    """Which features are added, and their signs: the same for every tensor."""
    draw = np.random.default_rng(features)
    order = draw.permutation(-(-features // KEPT) * KEPT)
    return order, draw.choice(np.array([-1, 1], np.float32), len(order))
