"""Which token each drafter row carries, and where it sits: ids are shifted by one, positions are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from parity.compare.rows import Clock
from parity.golden.manifest import Variant
from parity.golden.store import Dump

IDS, POSITIONS = "drafter.input_ids", "drafter.positions"


@dataclass(frozen=True)
class Pairing:
    """The rows of one round: how many, what is wrong ('' where nothing is), and the first wrong row's position."""

    prompt: int
    round: int
    rows: int
    wrong: str
    position: int


def pairings(golden: Dump, dump: Dump, variant: Variant) -> Iterator[Pairing]:
    """Every round of a dump against the prompts' own tokens and what the golden emitted."""
    for prompt, case in enumerate(golden.manifest.case.prompts):
        clock = Clock.of(case)
        tokens = np.array([*case.ids, *case.generation.emitted])
        for round_ in range(clock.rounds):
            start = clock.first(IDS, round_, 0)
            committed = clock.length(round_ - 1) - start if round_ else clock.prompt - 1
            due = tokens[start + 1 : start + 1 + committed]
            masked = golden.manifest.case.k - 1 if round_ else 0
            wrong, row = _wrong(dump, variant, prompt, round_, due, masked, start)
            yield Pairing(prompt, round_, committed + masked, wrong, start + row)


def _wrong(
    dump: Dump, variant: Variant, prompt: int, round_: int, due: np.ndarray, masked: int, start: int
) -> tuple[str, int]:
    """What is wrong in one round, and its row."""
    ids, positions = (dump.stored(variant, prompt, round_, stage) for stage in (IDS, POSITIONS))
    width = len(due) + masked
    for stage, values in ((IDS, ids), (POSITIONS, positions)):
        if values is None or values.shape != (width,):
            return f"{stage} has not the {width} rows that are due", 0
    differ = np.flatnonzero(ids[: len(due)] != due)
    if len(differ):
        row = int(differ[0])
        return f"row {row} carries token {ids[row]}, the one behind position {start + row} is {due[row]}", row
    astray = np.flatnonzero(positions != start + np.arange(width))
    if len(astray):
        row = int(astray[0])
        return f"row {row} sits at position {positions[row]}, not {start + row}", row
    if len(set(ids[len(due) :].tolist())) > 1:
        return "masked rows carry several placeholder ids", len(due)
    return "", 0
