"""Acceptance by draft and by prompt, device beside reference, each with its 95 % limits on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parity.gates.acceptance_interval import mean_limits, wilson_limits
from parity.nightly.records import CellResult
from parity.reports.page.plots import Scale


@dataclass(frozen=True)
class Side:
    """A value with its limits, and where they stand on the scale."""

    value: float
    low: float
    high: float
    x: float
    from_x: float
    to_x: float


@dataclass(frozen=True)
class Row:
    """One draft or prompt."""

    name: str
    rounds: int
    device: Side
    reference: Side


@dataclass(frozen=True)
class Forest:
    """Rows on one scale."""

    scale: Scale
    rows: tuple[Row, ...]


def by_draft(result: CellResult) -> Forest | None:
    """The rate at which draft i of K is accepted, of all rounds; limits by Wilson."""
    if not result.positions:
        return None
    scale = Scale(0.0, 1.0, margin=16, form="{:.0%}")
    rows = tuple(
        Row(
            str(one.draft),
            one.rounds,
            _side(scale, one.accepted / max(one.rounds, 1), (one.low, one.high)),
            _side(
                scale,
                one.reference_accepted / max(one.reference_rounds, 1),
                wilson_limits(one.reference_accepted, one.reference_rounds),
            ),
        )
        for one in result.positions
    )
    return Forest(scale, rows)


def by_prompt(result: CellResult) -> Forest | None:
    """Every prompt's acceptance length; limits by resampling its rounds."""
    if not result.prompts:
        return None
    scale = Scale(1.0, float(max(result.cell.axes.k + 1, 2)))
    rows = tuple(
        Row(one.prompt, len(one.lengths), _mean(scale, one.lengths), _mean(scale, one.reference))
        for one in result.prompts
    )
    return Forest(scale, rows)


def lengths(result: CellResult) -> tuple[float, float] | None:
    """Acceptance length of device and reference over all prompts; None where nothing was generated."""
    device = [one for prompt in result.prompts for one in prompt.lengths]
    reference = [one for prompt in result.prompts for one in prompt.reference]
    if not device or not reference:
        return None
    return sum(device) / len(device), sum(reference) / len(reference)


def _mean(scale: Scale, rounds: Sequence[int]) -> Side:
    return _side(scale, sum(rounds) / max(len(rounds), 1), mean_limits(rounds, scale.low, scale.high))


def _side(scale: Scale, value: float, limits: tuple[float, float]) -> Side:
    low, high = limits
    return Side(value, low, high, scale(value), scale(low), scale(high))
