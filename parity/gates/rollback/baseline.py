"""What a device that never speculated holds: every row from one prefill over the whole text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from parity.errors import UsageError
from parity.files import config_of
from parity.gates.rollback.shown_caches import require_caches
from parity.golden.views import TrustedGolden
from parity.seam import Device
from parity.stages import DRAFTER_LOGITS, TARGET_LOGITS

FLOAT32_BOUND = 256 * 2.0**-23
"""Largest relative error of a float32 row against its never-speculated one: 256 ULP, 3.1e-5.

The same sums run over other row counts, so the last bits differ, and layers carry that on: 10 ULP on a clean device
and on the references with 8 layers; the rest is room for deeper models. A row that saw one wrong key, or was made from
a placeholder, is off by 1e-2 and more.
"""


class InjectedError(Exception):
    """The error a tap raises on purpose."""


class RecordingTap:
    """A tap that records, forces routes, and may raise.

    Args:
        at: number or name of the stage to raise at.
        routes: the chosen experts of true rows, [n, X], by stage: a router tie in another rounding would send a clean
            row elsewhere. The first n rows continue with them.
    """

    def __init__(self, at: int | str | None = None, routes: Mapping[str, np.ndarray] | None = None):
        self.at, self.routes = at, routes or {}
        self.tensors: dict[str, np.ndarray] = {}
        self.count, self.fired = 0, False

    def __call__(self, stage: str, value: np.ndarray) -> np.ndarray:
        self.tensors[stage] = np.array(value)
        number, self.count = self.count, self.count + 1
        if self.at in (number, stage):
            self.fired = True
            raise InjectedError(f"raised on purpose at {stage}")
        if stage not in self.routes:
            return value
        forced = np.array(value)
        forced[: len(self.routes[stage])] = self.routes[stage]
        return forced


class Baseline:
    """The greedy text behind a prompt and the state over it, from prefills and first drafts alone.

    Computed when it is first asked for, which starts new sequences on the device.

    Args:
        device: whose state is asked for; in float32.
        prompt: its number in the golden.
        ids: the tokens to prefill.
        more: how many tokens follow; fewer if the device says EOS.
        tied: how far, relative, a row of logits may be from another pass', where that is more than rounding.
    """

    def __init__(self, device: Device, prompt: int, ids: Sequence[int], more: int, tied: float = 0.0):
        self.tied = tied or FLOAT32_BOUND
        self.device, self.prompt, self.ids, self.asked = device, prompt, tuple(ids), more
        self._last: dict[int, np.ndarray] = {}  # logits [V] of the last row of a prefill, by position

    @cached_property
    def _grown(self) -> tuple[list[int], dict[int, tuple[dict[str, np.ndarray], np.ndarray | None]]]:
        """Prompt and greedy tokens; the routes and the draft logits of each length on the way."""
        eos, text, drafted = self.device.describe().eos, list(self.ids), {}
        while len(text) < len(self.ids) + self.asked and (len(text) == len(self.ids) or text[-1] not in eos):
            tap = RecordingTap()
            text.append(int(self.device.prefill(text, 2, tap)))
            if TARGET_LOGITS in tap.tensors:
                self._last[len(text) - 2] = tap.tensors[TARGET_LOGITS][-1]
            if text[-1] not in eos:
                routes = _routes(tap.tensors)
                tap = RecordingTap()
                self.device.draft(tap)
                drafted[len(text) - 1] = routes, tap.tensors.get(DRAFTER_LOGITS)
        return text, drafted

    @property
    def text(self) -> list[int]:
        """The prompt and the tokens that follow."""
        return self._grown[0]

    @property
    def more(self) -> int:
        """Tokens behind the prompt."""
        return len(self.text) - len(self.ids)

    @cached_property
    def state(self) -> dict[str, np.ndarray]:
        """Cache rows, logits and routes of one prefill over the whole text, by stage.

        Raises:
            Inconclusive: the device hands over no contents of a cache that it does not declare to hide.
        """
        tap = RecordingTap()
        self.device.prefill(self.text, 1, tap)
        require_caches(self.device, tap.tensors)
        keep = {stage: x for stage, x in tap.tensors.items() if stage.startswith((TARGET_LOGITS, "kv."))}
        if TARGET_LOGITS in keep and len(keep[TARGET_LOGITS]) < len(self.text):
            keep[TARGET_LOGITS] = self._rows(keep[TARGET_LOGITS][-1])
        return _routes(tap.tensors) | keep

    def _rows(self, last: np.ndarray) -> np.ndarray:
        """Logits [S, V] of a device that shows a prefill's last row alone: each from a prefill up to there.

        Rows inside the prompt, which no round computes again, hold the last one.
        """
        return np.stack([self._last.get(position, last) for position in range(len(self.text))])

    @cached_property
    def drafts(self) -> dict[int, np.ndarray]:
        """Drafter logits [K, VD] right after a prefill of so much text.

        A length is missing where they are not handed over, or where a router tie fell otherwise.
        """
        return {
            length: logits
            for length, (routes, logits) in self._grown[1].items()
            if logits is not None and all(np.array_equal(x, self.state[s][:length]) for s, x in routes.items())
        }

    def compute(self) -> None:
        """Compute the state and the drafts now, where that was not done before."""
        _ = self.state, self.drafts

    def routes(self, start: int, end: int) -> dict[str, np.ndarray]:
        """The chosen experts of the text's rows start … end-1, by stage."""
        return {stage: value[start:end] for stage, value in _routes(self.state).items()}

    def tie(self, position: int, token: int) -> bool:
        """Whether the row at this position holds this token's logit at the top, within the float32 bound."""
        logits = self.state.get(TARGET_LOGITS)
        if logits is None:
            return False
        row = logits[position].astype(np.float64)
        return bool(row.max() - row[token] <= self.tied * np.sqrt((row**2).mean()))


class GivenText(Baseline):
    """Given tokens, where nothing is compared with a never-speculated state."""

    def __init__(self, baseline: Baseline, more: Sequence[int]):
        super().__init__(baseline.device, baseline.prompt, baseline.ids, baseline.more + len(more), baseline.tied)
        self._grown = [*baseline.text, *more], {}


def row_errors(rows: np.ndarray, true: np.ndarray, start: int = 0) -> np.ndarray:
    """Of each row, the L2 error against true[start:] over the RMS norm of all true rows: float64 [S].

    NaN and Inf count as infinite, and so does another shape.
    """
    against = true[start : start + len(rows)].astype(np.float64)
    if rows.shape != against.shape:
        return np.full(max(len(rows), 1), np.inf)
    axes = tuple(range(1, true.ndim))
    scale = np.sqrt((true.astype(np.float64) ** 2).sum(axis=axes).mean())
    with np.errstate(all="ignore"):
        gap = np.sqrt(((rows.astype(np.float64) - against) ** 2).sum(axis=axes))
        errors: np.ndarray = np.nan_to_num(gap / scale, nan=np.inf, posinf=np.inf)
    return errors


def _routes(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {stage: value for stage, value in tensors.items() if stage.endswith(".experts")}


SHORT = (2, 9)


def window(golden: TrustedGolden) -> int | None:
    """The target's sliding window, from its checkpoint's config; None where it has none or cannot be read."""
    try:
        size = config_of(Path(golden.manifest.model.target.path)).get("sliding_window")
    except UsageError:
        return None
    return size if isinstance(size, int) and size > 0 else None


def starts(golden: TrustedGolden, most: int) -> list[tuple[int, list[int]]]:
    """(number of a golden prompt, its last tokens), of several lengths up to `most`."""
    prompts, edge = golden.manifest.case.prompts, window(golden) or 32
    lengths = [length for length in (*SHORT, edge - 6, edge - 1, edge + 8) if 2 <= length <= most]
    return [(n % len(prompts), repeated(prompts[n % len(prompts)].ids, length)) for n, length in enumerate(lengths)]


def repeated(ids: Sequence[int], length: int) -> list[int]:
    """The last `length` tokens of the prompt, said as often as that takes."""
    return (list(ids) * -(-length // len(ids)))[-length:]
