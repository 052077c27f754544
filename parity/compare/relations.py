"""What is known of a stage's rows, and the simplest condition that separates the bad ones from the clean ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import lgamma, log, log2
from pathlib import Path
from typing import Any

import numpy as np

from parity.compare.rows import Clock, StageRows, stage_rows
from parity.errors import UsageError
from parity.files import config_of
from parity.golden.views import DumpView

LENGTHS = ("window", "position", "context", "length", "chunk", "block", "page")
"""Parts of a key's name that make its number a place in the sequence; a head dimension of 32 is none."""


@dataclass(frozen=True)
class Facts:
    """Of rows [R], int64 unless said otherwise.

    Attributes:
        prompt, round, position: as in `StageRows`; `index` counts a row inside its tensor, `count` that tensor's rows.
        prompts: tokens of the row's prompt.
        committed: of drafter stages, the committed rows of the tensor, -1 where the stage has none of its own.
        side: target, verify, drafter or kv.
        experts: bool [R] by expert that the golden chose, where the stage lies behind a router.
        lengths: numbers of the checkpoints' configs by name.
    """

    prompt: np.ndarray
    round: np.ndarray
    position: np.ndarray
    index: np.ndarray
    count: np.ndarray
    prompts: np.ndarray
    committed: np.ndarray
    side: str
    experts: Mapping[int, np.ndarray] = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, golden: DumpView, rows: StageRows) -> Facts:
        """Of these rows over a golden; a checkpoint that is not here any more has no lengths."""
        cases = golden.manifest.case.prompts
        edges = np.flatnonzero(np.diff(rows.prompt, prepend=-1) | np.diff(rows.round, prepend=-1))
        counts = np.diff(np.append(edges, len(rows.prompt)))
        return cls(
            prompt=rows.prompt,
            round=rows.round,
            position=rows.position,
            index=np.arange(len(rows.prompt)) - np.repeat(edges, counts),
            count=np.repeat(counts, counts),
            prompts=np.array([len(case.ids) for case in cases])[rows.prompt],
            committed=_committed(golden, rows),
            side=rows.named.stage.side,
            experts=_routed(golden, rows),
            lengths=_lengths(golden, rows.named.stage.side),
        )


def _committed(golden: DumpView, rows: StageRows) -> np.ndarray:
    """Committed rows of a drafter pass: known tokens; the head's stages start at the last of them."""
    if rows.named.stage.side != "drafter":
        return np.full(len(rows.prompt), -1)
    clocks = [Clock.of(case, golden.manifest) for case in golden.manifest.case.prompts]
    head = rows.named.name in ("drafter.pre_head_hidden", "drafter.logits", "drafter.draft_tokens")
    one = head or rows.named.stage.axes[0] == "B"  # a block begins with one known token
    due = [
        (1 if one else clocks[prompt].committed(round_)) if round_ else -1
        for prompt, round_ in zip(rows.prompt.tolist(), rows.round.tolist(), strict=True)
    ]
    return np.array(due)


def _routed(golden: DumpView, rows: StageRows) -> dict[int, np.ndarray]:
    if rows.named.stage.part not in ("ffn_out", "out") or rows.named.stage.side != "target":
        return {}
    name = f"target.layers.{rows.named.layer}.experts"
    if name not in golden.manifest.stages:
        return {}
    chosen = stage_rows(golden, golden, golden.declared[name], device="float32", mode="chained")
    if chosen is None or not np.array_equal(chosen.position, rows.position) or chosen.golden.ndim != 2:
        return {}
    return {int(expert): (chosen.golden == expert).any(axis=1) for expert in np.unique(chosen.golden)}


def _lengths(golden: DumpView, side: str) -> dict[str, int]:
    """The lengths of the stage's own checkpoint first, then those that only the other one has."""
    model = golden.manifest.model
    order = (model.drafter, model.target) if side == "drafter" else (model.target, model.drafter)
    lengths: dict[str, int] = {}
    for part in order:
        for name, number in _numbers(_config(Path(part.path))):
            lengths.setdefault(name, number)
    return lengths


def _config(folder: Path) -> dict[str, Any]:
    """A checkpoint's config; nothing where it is absent, too large or broken: a relation is no verdict."""
    try:
        return config_of(folder)
    except UsageError:
        return {}


def _numbers(part: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Every whole number whose name says that it is a length, parts included."""
    for name, value in part.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif type(value) is int and value > 0 and any(part in name for part in LENGTHS):
            yield name, value


FEWEST = 3
"""Rows of a stage from which "every row" says something."""

BITS = 10.0
"""A condition among n tried is believed where chance picks such rows less than once in 2^10 n times."""

PERIODS = tuple(2**power for power in range(1, 13))
"""Tiles and pages are powers of two."""

NEAR = (0, -1, 1)
"""A bound that is off by one breaks one row before or behind the config's."""


@dataclass(frozen=True)
class Predicate:
    """A condition in words, the rows [R] (bool) that it holds for, and out of how many it was chosen."""

    says: str
    rows: np.ndarray
    tried: int = 1


PredicateFamily = Callable[[Facts, np.ndarray], Iterator[Predicate]]
"""From the facts and the bad rows [R]; where it takes a number from the bad rows, `tried` counts what it chose from."""


def relation(bad: np.ndarray, judged: np.ndarray, facts: Facts) -> str:
    """What the bad rows have in common and the clean ones have not; '' where nothing was found.

    Args:
        bad, judged: bool [R]; rows that are not judged (set apart) are neither bad nor clean.
    """
    count, all_ = int(bad[judged].sum()), int(judged.sum())
    if not count:
        return ""
    if count == all_ >= FEWEST:
        return "every row"
    bits, number = _bits(all_, count), 0
    for predicate in _predicates(facts, bad & judged):
        number += predicate.tried
        if np.array_equal(predicate.rows[judged], bad[judged]):
            if bits >= BITS + log2(number):
                return predicate.says
            return f"too few rows ({count} bad of {all_}) to tell a condition"
    return _edge(bad, judged, facts)


def _bits(all_: int, count: int) -> float:
    """log2 of the ways to pick so many rows of all."""
    return (lgamma(all_ + 1) - lgamma(count + 1) - lgamma(all_ - count + 1)) / log(2)


def _predicates(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Every family alone, then inside the prefill and inside the later passes."""
    for family in FAMILIES:
        yield from family(facts, bad)
    for inside in passes(facts):
        for family in FAMILIES:
            for predicate in family(facts, bad & inside.rows):
                says = f"{predicate.says}, in {inside.says}"
                yield Predicate(says, predicate.rows & inside.rows, predicate.tried)
    yield from _stretch(facts, bad)


def _edge(bad: np.ndarray, judged: np.ndarray, facts: Facts) -> str:
    """A place of the config before which no row is bad, and that the first bad row sits on."""
    first = int(facts.position[bad & judged].min())
    behind = judged & (facts.position >= first)
    chance = int(bad[judged].sum()) * log2(judged.sum() / behind.sum())
    named = [says for says, place in _places(facts) if np.all(place == first)]
    if chance < BITS or not named:
        return ""
    return f"none before {first} = {named[0]}, {int((bad & judged).sum())} of {int(behind.sum())} rows from there on"


def passes(facts: Facts) -> Iterator[Predicate]:
    """Prefill against the passes of later rounds."""
    later = {"target": "verify rows", "verify": "verify rows"}.get(facts.side, "rows of later rounds")
    yield Predicate("prefill rows", facts.round == 0)
    yield Predicate(later, facts.round > 0)


def _only_passes(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    yield from (Predicate(f"{inside.says} only", inside.rows) for inside in passes(facts))


def _ends(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """First and last rows."""
    yield Predicate("position 0 only", facts.position == 0)
    yield Predicate("row 0 of every pass", facts.index == 0)
    yield Predicate("the last row of every pass", facts.index == facts.count - 1)
    yield Predicate("every row of a pass but its first", facts.index > 0)
    yield Predicate("every row of a pass but its last", facts.index < facts.count - 1)
    yield Predicate("every position but 0", facts.position > 0)


def _drafted(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Committed and masked rows of the drafter."""
    known = facts.committed >= 0
    if known.any():
        yield Predicate("masked rows only", known & (facts.index >= facts.committed))
        yield Predicate("committed rows only", ~known | (facts.index < facts.committed))
        yield Predicate("the NTP row only", known & (facts.index == facts.committed - 1))
        yield Predicate("the first masked row only", known & (facts.index == facts.committed))


def _thresholds(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """From a place that the config or the prompt knows on, or before it."""
    for says, place in _places(facts):
        where = f"{place} = {says}" if isinstance(place, int) else says
        yield Predicate(f"from {where} on", facts.position >= place)
        yield Predicate(f"before {where}", facts.position < place)


def _places(facts: Facts) -> Iterator[tuple[str, int | np.ndarray]]:
    """Places in the sequence with a name: the prompt's end, and the lengths of the config, one off included."""
    named: list[tuple[str, int | np.ndarray]] = [("the prompt's end", facts.prompts), *facts.lengths.items()]
    for off in NEAR:
        for name, number in named:
            yield name + (f" {'+' if off > 0 else '-'} {abs(off)}" if off else ""), number + off


def _experts(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    yield from (Predicate(f"expert {expert}'s rows", rows) for expert, rows in facts.experts.items())


def _parts(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """One prompt, one round, or everything from a round on."""
    for prompt in np.unique(facts.prompt[bad])[:1].tolist():
        yield Predicate(f"prompt {prompt} only", facts.prompt == prompt, int(facts.prompt.max()) + 1)
    for round_ in np.unique(facts.round[bad])[:1].tolist():
        yield Predicate(f"round {round_} only", facts.round == round_, int(facts.round.max()) + 1)
        yield Predicate(f"from round {round_} on", facts.round >= round_, int(facts.round.max()) + 1)


def _periods(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Every 2^n-th position, and every 2^n-th row of a pass."""
    for what, values in (("position", facts.position), ("row of a pass", facts.index)):
        for period in PERIODS:
            rest = values[bad][:1] % period
            if period > values.max(initial=0) or not rest.size:
                break
            yield Predicate(f"every {_nth(period)} {what}, from {rest[0]} on", values % period == rest[0], period)


def _anywhere(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """From any place on or before it, whoever set it."""
    if bad.any():
        least, most = int(facts.position[bad].min()), int(facts.position[bad].max())
        tried = len(np.unique(facts.position))
        yield Predicate(f"from position {least} on", facts.position >= least, tried)
        yield Predicate(f"up to position {most}", facts.position <= most, tried)
        yield Predicate(f"position {least} only", facts.position == least, tried)


def _stretch(facts: Facts, bad: np.ndarray) -> Iterator[Predicate]:
    """Between any two places: the least that can be said, so the last that is tried."""
    if bad.any():
        least, most = int(facts.position[bad].min()), int(facts.position[bad].max())
        inside = (facts.position >= least) & (facts.position <= most)
        yield Predicate(f"positions {least} to {most}", inside, len(np.unique(facts.position)) ** 2)


FAMILIES: tuple[PredicateFamily, ...] = (
    _only_passes,
    _ends,
    _drafted,
    _thresholds,
    _experts,
    _parts,
    _periods,
    _anywhere,
)
"""Simplest first: what several of them say alike is told by the first."""


def _nth(number: int) -> str:
    return f"{number}{'nd' if number % 10 == 2 and number % 100 != 12 else 'th'}"
