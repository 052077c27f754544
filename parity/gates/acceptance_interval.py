"""The device's acceptance length relative to the reference's, with what chance alone does to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from parity.compare.report import FAIL, INCONCLUSIVE, PASS

CONFIDENCE = 0.95
"""Of each limit alone: the verdict asks one side only."""

RESAMPLES = 4000
"""The 5 % quantile of 4,000 resamples has a standard error of 0.35 % in its level: 4.3 % to 5.7 %."""

PROMPTS = 20
"""Prompts from which an interval counts. Prompts are what is resampled; the percentile limits of n of them use the
normal's 1.645 where Student's t asks for more: 5 % too narrow at 20, 30 % at 5."""

HALF_WIDTH, AT_ROUNDS = 0.047, 400
"""95 % half width of one acceptance length near 2.56 over this many rounds; it shrinks with their square root."""


@dataclass(frozen=True)
class Interval:
    """A relative difference device / reference - 1, and its one-sided 95 % limits."""

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.estimate:+.1%}, 95 % limits [{self.low:+.1%}, {self.high:+.1%}]"


@dataclass(frozen=True)
class TokenSums:
    """Per prompt, [P] each: tokens (a count or an expectation) and the rounds they came from."""

    tokens: np.ndarray
    rounds: np.ndarray


def paired_bootstrap(device: TokenSums, reference: TokenSums, seed: int) -> Interval:
    """Block bootstrap by prompt: whole prompts are drawn, device and reference together.

    Rounds of a prompt are not independent, and both sides run the same prompts: drawing prompts keeps both.
    Deviations are widened by sqrt(P / (P - 1)), which resampling P blocks falls short of.
    """
    count = len(device.rounds)
    chosen = np.random.default_rng(seed).integers(count, size=(RESAMPLES, count))
    sides = (device.tokens, device.rounds, reference.tokens, reference.rounds)
    drawn = _relative(*(side[chosen].sum(axis=1) for side in sides))
    estimate = float(_relative(*(side.sum() for side in sides)))
    low, high = np.quantile(drawn, [1 - CONFIDENCE, CONFIDENCE]) - estimate
    wider = np.sqrt(count / max(count - 1, 1))
    return Interval(estimate, estimate + float(low * wider), estimate + float(high * wider))


def _relative(tokens: np.ndarray, rounds: np.ndarray, true_tokens: np.ndarray, true_rounds: np.ndarray) -> np.ndarray:
    reference = np.maximum(true_tokens / np.maximum(true_rounds, 1), 1e-9)
    difference: np.ndarray = (tokens / np.maximum(rounds, 1)) / reference - 1
    return difference


def wilson_limits(hits: int, tries: int) -> tuple[float, float]:
    """Two-sided 95 % limits of a rate (Wilson 1927): never outside [0, 1], [0, 1] where nothing was tried.

    Rounds are taken as independent, which those of one prompt are not: a picture's limits, not a gate's.
    """
    if tries == 0:
        return 0.0, 1.0
    rate, z = hits / tries, 1.96
    middle = (rate + z * z / (2 * tries)) / (1 + z * z / tries)
    half = z / (1 + z * z / tries) * np.sqrt(rate * (1 - rate) / tries + (z / (2 * tries)) ** 2)
    return float(max(middle - half, 0.0)), float(min(middle + half, 1.0))


def mean_limits(values: Sequence[float], low: float, high: float, seed: int = 0) -> tuple[float, float]:
    """Two-sided 95 % limits of the mean of values within [low, high], by resampling, widened as in `paired_bootstrap`.

    Fewer than two values say nothing: [low, high]. For a prompt's rounds, which are few and not independent: a
    picture's limits, not a gate's.
    """
    sample = np.asarray(values, float)
    if len(sample) < 2:
        return low, high
    drawn = sample[np.random.default_rng(seed).integers(len(sample), size=(RESAMPLES, len(sample)))].mean(axis=1)
    limits = sample.mean() + (np.quantile(drawn, [0.025, 0.975]) - sample.mean()) * np.sqrt(
        len(sample) / (len(sample) - 1)
    )
    return max(float(limits[0]), low), min(float(limits[1]), high)


def least_rounds(bound: float) -> int:
    """Rounds from which the half width of an acceptance length is within the bound: 354 at 5 %."""
    return ceil(AT_ROUNDS * (HALF_WIDTH / bound) ** 2)


def interval_verdict(interval: Interval, bound: float, rounds: int, prompts: int) -> tuple[str, str]:
    """Pass when a larger loss than the bound is excluded, fail when a smaller one is; why, where neither.

    Too few rounds or prompts are never a verdict, whatever the interval says: it is itself an estimate.
    """
    if rounds < least_rounds(bound) or prompts < PROMPTS:
        return INCONCLUSIVE, f"too few: {least_rounds(bound)} rounds and {PROMPTS} prompts are needed"
    if interval.low >= -bound:
        return PASS, ""
    if interval.high < -bound:
        return FAIL, f"a loss of less than {bound:.0%} is excluded"
    return INCONCLUSIVE, f"the limits hold -{bound:.0%}: more prompts are needed"
