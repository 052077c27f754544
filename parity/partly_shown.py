"""A device of which only a part is shown, as a port would show it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from parity.batching import PREFILLS, BatchCall, BatchVerbs, LanesContinue
from parity.errors import UsageError
from parity.seam import (
    Batched,
    Continuing,
    ContinuingInLanes,
    Description,
    Device,
    Looping,
    OnRound,
    Sampling,
    Shown,
    SketchTap,
    Tap,
)
from parity.shown import VIEWS, View, narrowed, stages_of
from parity.stages import VERIFY_TOKENS


class PartTap:
    """Hands on the stages of a view, and leaves the rest as they are."""

    def __init__(self, tap: Tap, view: View, round_: int):
        self._tap, self._view, self.round = tap, view, round_
        for name in ("rows", "ranks"):
            if callable(handing := getattr(tap, name, None)):
                setattr(self, name, partial(self._hand, handing))
        if isinstance(tap, SketchTap):
            self.projection, self.sketch = partial(self._table, tap), tap.sketch
        if hasattr(tap, "unwatched"):
            self.unwatched = tap.unwatched

    def __call__(self, stage: str, value: np.ndarray) -> np.ndarray:
        """Take a stage; see `parity.seam.Tap`."""
        return np.asarray(self._hand(self._tap, stage, value))

    def _table(self, tap: SketchTap, stage: str, width: int) -> np.ndarray | None:
        """Of a hidden stage none, so that it comes whole and is left as it is."""
        return tap.projection(stage, width) if self._view.rows(stage, self.round) == "all" else None

    def _hand(self, handing: Callable[..., Any], stage: str, value: Any, *rest: Any) -> Any:
        known = stage in self._view.declared  # another name is the tap's to refuse
        hidden = known and self._view.rows(stage, self.round) is None
        return value if hidden else handing(stage, value, *rest)


class PartlyShown:
    """A device of which only a part is shown, as a port would show it; all else is the device's own.

    Args:
        inside: the device.
        stages: globs of what is shown.
    """

    def __init__(self, inside: Any, stages: Sequence[str]):
        self.inside, says = inside, inside.describe()
        declared = stages_of(says)
        self._shown = narrowed(says.shown, stages, declared, isinstance(inside, Looping))
        self._view = View(self._shown, declared)
        self._asked = View(tuple(Shown(glob) for glob in stages), declared)

    def describe(self) -> Description:
        """The device's own description, with what is shown of it."""
        says: Description = self.inside.describe()
        return replace(says, shown=self._shown)

    def prefill(self, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap) -> int:
        """See `Device.prefill`."""
        token: int = self.inside.prefill(prompt_ids, max_new_tokens, PartTap(tap, self._view, 0))
        return token

    def draft(self, tap: Tap, *k: int) -> np.ndarray:
        """See `Device.draft` and `VaryingK.draft`."""
        ids: np.ndarray = self.inside.draft(PartTap(tap, self._view, 1), *k)
        return ids

    def verify(self, draft_tokens: np.ndarray, tap: Tap) -> np.ndarray:
        """See `Device.verify`."""
        ids: np.ndarray = self.inside.verify(draft_tokens, PartTap(tap, self._view, 1))
        return ids

    def commit(self, draft_tokens: np.ndarray, verify_tokens: np.ndarray, tap: Tap) -> np.ndarray:
        """See `Device.commit`."""
        ids: np.ndarray = self.inside.commit(draft_tokens, verify_tokens, PartTap(tap, self._view, 1))
        return ids

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__dict__["inside"], name)
        if name == "show_caches":  # `Inspectable`, where the device is: on demand, whatever a round shows
            return lambda tap: found(PartTap(tap, self._asked, 1))
        return found


class PartlyShownContinuing(PartlyShown):
    """One whose prefill can continue from its caches."""

    def prefill_from(self, cached: int, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap) -> int:
        """See `Continuing.prefill_from`."""
        token: int = self.inside.prefill_from(cached, prompt_ids, max_new_tokens, PartTap(tap, self._view, 0))
        return token


class PartlyShownBatch(BatchVerbs, PartlyShown):
    """One of several lanes."""

    def batch(self, call: BatchCall) -> Sequence[Any]:
        """See `BatchVerbs.batch`."""
        parts = [PartTap(tap, self._view, int(call.verb not in PREFILLS)) for tap in call.taps]
        return replace(call, taps=parts).on(self.inside)

    def sample_batch(
        self, lanes: Sequence[int], settings: Sequence[Sampling | None], uniforms: Sequence[np.ndarray]
    ) -> None:
        """See `parity.seam.SamplesInLanes`."""
        self.inside.sample_batch(lanes, settings, uniforms)


class PartlyShownLanesContinue(LanesContinue, PartlyShownBatch):
    """One of several lanes whose prefills can continue from their caches."""


class PartlyShownLoop(PartlyShown):
    """One whose host loop cannot be split into verbs."""

    def speculate(self, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap, on_round: OnRound) -> Sequence[int]:
        """See `Looping.speculate`."""
        inside = PartTap(tap, self._view, 0)
        says_tokens = self._view.rows(VERIFY_TOKENS, 1) is not None

        def over(drafts: Sequence[int], emitted: Sequence[int], tokens: Sequence[int] | None = None) -> None:
            on_round(drafts, emitted, tokens if says_tokens else None)
            inside.round += 1

        ids: Sequence[int] = self.inside.speculate(prompt_ids, max_new_tokens, inside, over)
        return ids


def shown_only(device: Device, show: str) -> Device:
    """A device of which only a view of this name, or stages of these globs (`logits+kv.*`), are shown; '' shows all.

    Raises:
        UsageError: a glob matches no stage.
    """
    stages = VIEWS[show] if show in VIEWS else tuple(filter(None, show.split("+")))
    if show and not stages and show not in VIEWS:
        raise UsageError(
            f"show={show} names no stage: it takes a view ({', '.join(VIEWS)}) or globs, as in logits+kv.*"
        )
    kinds: tuple[tuple[type[Any], type[PartlyShown]], ...] = (
        (Looping, PartlyShownLoop),
        (ContinuingInLanes, PartlyShownLanesContinue),
        (Batched, PartlyShownBatch),
        (Continuing, PartlyShownContinuing),
    )
    kind = next((kind for offers, kind in kinds if isinstance(device, offers)), PartlyShown)
    return kind(device, stages) if stages else device
