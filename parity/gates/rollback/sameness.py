"""What "the same again" means: the same bits for a device that repeats itself, within noise for one that does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np

from parity.compare.choices import BUG, Choices, judge, judge_experts, ranked
from parity.compare.scores import scores_of
from parity.gates.context import NoiseFloors
from parity.gates.rollback.baseline import FLOAT32_BOUND, row_errors
from parity.policy import Policy, read_policy
from parity.stages import DRAFT_TOKENS, Named

StageTensors = Mapping[str, np.ndarray]
ULP = 2.0**-23
"""The unit of a float32 row's error: one rounding of a value as large as the row's RMS."""


class RepeatComparison(Protocol):
    """How a verb that is called again, from the same state with the same input, is compared with the first time."""

    @property
    def forces(self) -> bool:
        """Whether the second call continues with the choices of the first: a router tie that rounding decides sends a
        row elsewhere."""
        ...

    def changed(self, stage: str, before: StageTensors, now: StageTensors) -> int | None:
        """The first row of a stage that differs; None if all are the same."""
        ...


class BitExact:
    """The same bits."""

    forces = False

    def changed(self, stage: str, before: StageTensors, now: StageTensors) -> int | None:
        """The first row whose bits differ."""
        return changed_row(before[stage], now[stage]) if stage in now else 0


@dataclass(frozen=True)
class WithinNoise:
    """The same but for rounding, within a bound that is not measured on the device itself.

    In float32 a row may differ by `FLOAT32_BOUND`, or by what ties of quantised caches come to; in bfloat16 by the
    policy's worst row times the golden's noise at the stage. Choices are judged by the scores of the first call, every
    other integer by its bits.
    """

    names: Mapping[str, Named]
    precision: str
    noise: NoiseFloors
    forces: bool = True

    def changed(self, stage: str, before: StageTensors, now: StageTensors) -> int | None:
        """The first row beyond its bound."""
        bad = np.flatnonzero(self.apart(stage, before, now) > 1.0)
        return int(bad[0]) if bad.size else None

    def apart(self, stage: str, before: StageTensors, now: StageTensors) -> np.ndarray:
        """How far each row is from the first time, as a multiple of its bound [S].

        Infinite for what may not differ, and one infinite row where the tensor is of another shape or dtype, or there
        one time only.
        """
        old, new = before.get(stage), now.get(stage)
        if old is None or new is None or old.shape != new.shape or old.dtype != new.dtype:
            return np.array([np.inf])
        if not len(old):
            return np.zeros(0)
        if self.names[stage].stage.exact:
            differ = (old != new).reshape(len(old), -1).any(axis=1)
            explained = self._explained(stage, before, now) if differ.any() else differ
            return np.where(differ & ~explained, np.inf, 0.0)
        multiples: np.ndarray = self._errors(old, new) / self.bound(stage)
        return multiples

    def bound(self, stage: str) -> float:
        """Largest relative error of a row."""
        if self.precision == "float32":
            return self.noise.flip_bound(stage) or FLOAT32_BOUND
        return _worst_row(self.precision, stage) * self.noise.noisy(stage)

    def unit(self, stage: str) -> float:
        """The relative error that is 1 in `said`."""
        return ULP if self.precision == "float32" else self.noise.noisy(stage)

    def said(self, stage: str, apart: float) -> str:
        """A multiple of the bound in words."""
        word = " ULP" if self.precision == "float32" else "x noise"
        bound, unit = self.bound(stage), self.unit(stage)
        return f"{apart * bound / unit:.2g}{word} (bound {bound / unit:.3g})"

    def _errors(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Relative row errors [S]; NaN and Inf count as infinite, unless both have the same ones in the same places."""
        old, new = _matched(old, new)
        if self.precision == "float32":
            return row_errors(new, old)
        old, new = (side.reshape(len(side), -1).astype(np.float64) for side in (old, new))
        with np.errstate(all="ignore"):
            size = np.linalg.norm(old, axis=1)
            gap = np.linalg.norm(new - old, axis=1) / np.where(size > 0, size, 1.0)
        errors: np.ndarray = np.nan_to_num(gap, nan=np.inf, posinf=np.inf)
        return errors

    def _explained(self, stage: str, before: StageTensors, now: StageTensors) -> np.ndarray:
        """Rows whose other choice is a tie or within noise, by the scores that the first call handed over [S]."""
        behind = scores_of(stage) if self.names[stage].stage.forced else None
        scores = None if behind is None else before.get(behind)
        old, new = (side[stage].astype(np.int64) for side in (before, now))
        if behind is None or scores is None or len(scores) != len(old):
            return np.zeros(len(old), bool)
        scores = scores.astype(np.float32)
        finite = np.where(np.isfinite(scores), scores, 0.0)  # a masked score is no size that noise could have
        noise = np.sqrt((finite.astype(np.float64) ** 2).mean(axis=1)) * self._share(behind)
        if self.names[stage].stage.axes[-1] == "X":  # sets of experts, or of pages
            return self._near(judge_experts(scores, old, new, noise), noise)
        if stage == DRAFT_TOKENS:  # ids of the target's vocabulary: the columns are the scores' own
            old, new = (side[behind].astype(np.float32).argmax(axis=1) for side in (before, now))
        legal = (new >= 0) & (new < scores.shape[1]) & (new != old)
        choices = judge(scores, *ranked(scores, old, np.where(legal, new, old)), noise)
        explained: np.ndarray = legal & self._near(choices, noise)
        return explained

    def _share(self, stage: str) -> float:
        exact = self.precision == "float32" and not self.noise.flips
        return FLOAT32_BOUND if exact else self.noise.noisy(stage)

    def _near(self, choices: Choices, noise: np.ndarray) -> np.ndarray:
        """In float32 both scores may be off by their bound, in bfloat16 a tie or the row's noise explains it."""
        return choices.regret <= 2 * noise if self.precision == "float32" else choices.verdict != BUG


def _matched(old: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both, of one shape, with zeros where they hold the same value that is no finite number."""
    if np.isfinite(old).all():
        return old, new
    alike = ~np.isfinite(old) & ((old == new) | (np.isnan(old) & np.isnan(new)))
    old, new = (np.where(alike, side.dtype.type(0), side) for side in (old, new))
    return old, new


@cache
def _worst_row(precision: str, stage: str) -> float:
    """The default policy's bound on a row, in multiples of its noise."""
    return _policy(precision).row(stage, "chained").bounds["worst_row"].warn


@cache
def _policy(precision: str) -> Policy:
    return read_policy(None, precision)


def chosen(names: Mapping[str, Named], tensors: StageTensors) -> dict[str, np.ndarray]:
    """The choices among what a verb handed over: experts and tokens."""
    return {
        stage: x for stage, x in tensors.items() if names[stage].stage.forced and names[stage].stage.side != "accept"
    }


def changed_row(before: np.ndarray, now: np.ndarray) -> int | None:
    """The first row whose bits differ; None if all are the same."""
    if before.shape != now.shape or before.dtype != now.dtype:
        return 0
    if not before.size:
        return None
    bits = (np.ascontiguousarray(x).view(np.uint8).reshape(len(x), -1) for x in (before, now))
    differ = np.not_equal(*bits).any(axis=1)
    return int(differ.argmax()) if differ.any() else None
