"""Do the device's own passes turn every row by its position? Seen through the seam alone, without a reference.

One token everywhere, one fused hidden everywhere: then all keys of layer 0 are the same vector before RoPE, in the
prompt, in committed and in re-fed rows. Turned back by their positions, the cached keys must be one vector again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from parity.errors import NotOffered
from parity.families import MODEL, TAPS, family_of
from parity.gates import rope
from parity.gates.rope import RopeSchedule
from parity.seam import Device, Side
from parity.stages import ACCEPT_EMITTED, DRAFT_TOKENS, DRAFTER_FC_OUT, DRAFTER_POSITIONS, TARGET_TOKENS, VERIFY_TOKENS

ROWS, ROUNDS = 512, 6
FIRST_KEYS: dict[str, Side] = {"kv.target.0.k": "target", "kv.drafter.0.k": "drafter"}
"""Cache stages of layer 0, and their side."""

WRITTEN: dict[str, Side] = {"target.layers.0.k": "target", "drafter.layers.0.k": "drafter"}
"""What is written to them, where they keep another format than the pass has."""

CHOSEN = (TARGET_TOKENS, VERIFY_TOKENS, DRAFT_TOKENS, ACCEPT_EMITTED)

SAME = 2.0**-6
"""How far keys may lie apart, relative to the longest pair of their head: four bfloat16 roundings of 2^-8 (projection,
table, rotation, cache). One position too far turns the first pair by 1 rad; finer errors are for the rotation alone."""


@dataclass
class OneTokenTap:
    """A tap that makes every row the same, and keeps the keys of layer 0 as they are in the caches.

    Attributes:
        waits: stages that it replaces and that were not handed over so far.
        quantised: caches keep another format: the keys are those that are written to them, `written` by position.
    """

    token: int
    waits: set[str]
    keys: dict[Side, np.ndarray] = field(default_factory=dict)
    quantised: bool = False
    written: dict[Side, dict[int, np.ndarray]] = field(default_factory=lambda: {"target": {}, "drafter": {}})
    _positions: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    _fused: np.ndarray | None = None

    def __call__(self, stage: str, value: np.ndarray) -> np.ndarray:
        """Continue with the one token, and with the first fused row."""
        self.waits.discard(stage)
        if stage in CHOSEN:
            return np.full_like(value, self.token)
        if stage == DRAFTER_FC_OUT:
            self._fused = np.array(value[:1]) if self._fused is None else self._fused
            return np.broadcast_to(self._fused, value.shape).copy()
        if stage == DRAFTER_POSITIONS:
            self._positions = np.array(value)
        if stage in WRITTEN:
            self._write(WRITTEN[stage], np.array(value, np.float32))
        if stage in FIRST_KEYS:
            side, rows = FIRST_KEYS[stage], self.written[FIRST_KEYS[stage]]
            known = self.quantised and all(row in rows for row in range(len(value)))
            self.keys[side] = (
                np.stack([rows[row] for row in range(len(value))]) if known else np.array(value, np.float32)
            )
        return value

    def _write(self, side: Side, rows: np.ndarray) -> None:
        """Keys of a pass; the target's are behind those of all passes before, as all of them are accepted."""
        first = len(self.written[side])
        places = self._positions if side == "drafter" else np.arange(first, first + len(rows))
        self.written[side] |= dict(zip(places.tolist(), rows, strict=False))

    def rows(self, stage: str, value: np.ndarray, first: int, total: int) -> np.ndarray:
        """The same for a pass of a chain, as `parity.seam.RowTap` has it: its rows are made the same as well."""
        return self(stage, value)


def cached_keys(device: Device, token: int, k: int) -> tuple[dict[Side, np.ndarray], int]:
    """Keys of layer 0 by side, [S, G, D], after a prompt and some rounds that accept everything; rows of the prompt.

    Raises:
        NotOffered: the device records no such keys, does not hand over what makes rows differ, or its caches are too
            short.
    """
    budget = 1 + ROUNDS * (k + 1)
    prompt = min(device.describe().max_positions, ROWS) - budget - k
    if prompt < 2:
        raise NotOffered(f"{device.describe().max_positions} positions are too few for {ROUNDS} rounds of {k} drafts")
    family = family_of(device.describe().family)
    waits = {*CHOSEN, *([DRAFTER_FC_OUT] if TAPS in family.has else [])}
    tap = OneTokenTap(token, waits, quantised=bool(device.describe().kv_cache))
    device.prefill([token] * prompt, budget, tap)
    for _ in range(ROUNDS):
        drafts = device.draft(tap)
        device.commit(drafts, device.verify(drafts, tap), tap)
    due: set[Side] = {"target", "drafter"} if MODEL in family.has else {"target"}
    if missing := due - tap.keys.keys():
        raise NotOffered(f"the device records no kv.{min(missing)}.0.k, by which its positions could be seen")
    if tap.waits:
        shown = ", ".join(sorted(tap.waits))
        raise NotOffered(f"its rows cannot be made the same: its tap is not given {shown} (verbs return them too late)")
    return tap.keys, prompt


def misturned(schedule: RopeSchedule, keys: np.ndarray) -> np.ndarray:
    """How far each row [S] lies from the others once it is turned back, relative to its head's longest pair."""
    rows = np.arange(len(keys))
    back = rope.pairs(keys) / rope.turn(schedule.frequencies(), rows)[:, None]
    apart = np.abs(back - _middle(back)).max(axis=-1) / np.abs(back).max(axis=(0, 2))
    largest: np.ndarray = np.nan_to_num(apart, nan=np.inf).max(axis=-1)
    return largest


def seen_position(schedule: RopeSchedule, keys: np.ndarray, right: np.ndarray, row: int) -> int:
    """The position by which this row seems to be turned, judged by the right rows (bool [S])."""
    rows = np.arange(len(keys))
    turn = rope.turn(schedule.frequencies(), rows)[:, None]
    middle = _middle((rope.pairs(keys) / turn)[right if right.any() else ~right])
    return int(np.abs(rope.pairs(keys[row]) - middle * turn).sum(axis=(1, 2)).argmin())


def first_wrong(schedule: RopeSchedule, side: Side, keys: np.ndarray, prompt: int) -> str:
    """Where a side's passes first turn a row wrongly, in words; empty where they never do.

    Args:
        prompt: rows of its prefill.
    """
    apart = misturned(schedule, keys)
    wrong = np.flatnonzero(apart > SAME)
    if not len(wrong):
        return ""
    row, where = int(wrong[0]), "prefill"
    if row >= prompt:
        where = "the rounds behind the prompt"
    seen = seen_position(schedule, keys, apart <= SAME, row)
    return f"{side}: {len(wrong)} of {len(keys)} rows misturned, first row {row} (in {where}), as if at position {seen}"


def plain_token(ids: Sequence[int], ends: Sequence[int]) -> int:
    """A token of the prompt that ends nothing."""
    return next(token for token in ids if token not in ends)


def _middle(vectors: np.ndarray) -> np.ndarray:
    """The median of complex vectors over rows, part by part."""
    middle: np.ndarray = np.median(vectors.real, axis=0) + 1j * np.median(vectors.imag, axis=0)
    return middle
