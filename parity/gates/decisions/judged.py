"""One group of logits, row by row: the choice, its regret, and how far the whole distribution moved."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parity.compare.basis import Basis
from parity.compare.choices import row_noise
from parity.compare.decisions import BUG, NOISE, SAME, TIE, judge, regrets
from parity.compare.floor import WIDEST
from parity.compare.rows import stage_rows
from parity.compare.scores import SCORES
from parity.gates.decisions.vocabulary import Vocabulary
from parity.golden.store import Dump
from parity.metrics import measure
from parity.metrics.topk import topk_overlap

KS = (1, 5, 50)
UNKNOWN = "unknown"
"""The verdict of another choice in a row that ran through experts of the run's own, of which nothing is known."""
BLOCK = 2**22
"""Logits taken to float64 at a time: 32 MiB of them."""


@dataclass(frozen=True)
class Judged:
    """Rows [R] of one group. `lack` says what evidence is missing, '' where none is.

    `regret` is in logits, `kl` is KL(golden || device) in nats, `overlap` [R, 3] at top 1, 5 and 50, `relative`
    the largest |device - golden| of a row over its largest |golden|; `slot` is the row's number in its round.
    """

    stage: str
    verdict: np.ndarray
    regret: np.ndarray
    near: np.ndarray
    kl: np.ndarray
    overlap: np.ndarray
    relative: np.ndarray
    finite: np.ndarray
    prompt: np.ndarray
    round: np.ndarray
    position: np.ndarray
    slot: np.ndarray
    lack: str = ""

    @property
    def bugs(self) -> np.ndarray:
        """Rows [R] whose choice nothing explains."""
        return self.verdict == BUG

    def of(self, rows: np.ndarray) -> Judged:
        """Some of the rows."""
        arrays = {name: value[rows] for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return replace(self, **arrays)

    def figures(self) -> dict[str, Any]:
        """Counts, means and maxima."""
        counts = {name: int((self.verdict == name).sum()) for name in (SAME, TIE, NOISE, BUG)}
        found = {"rows": len(self.verdict), **counts, "tie_at_two_ulp": int(self.near.sum())}
        if not len(self.verdict):
            return found
        return found | {
            "regret_zero": int((self.regret == 0).sum()),
            "regret_mean": float(self.regret.mean()),
            "regret_max": float(self.regret.max()),
            "kl_mean": float(self.kl.mean()),
            "kl_max": float(self.kl.max()),
            "overlap": {f"top{k}": float(share) for k, share in zip(KS, self.overlap.mean(axis=0), strict=True)},
            "largest_relative": float(self.relative.max()),
            "not_finite": int((~self.finite).sum()),
        }


def judged(on: Basis, run: Dump, stage: str, vocabulary: Vocabulary) -> Judged:
    """Every row of the logits behind a stage of tokens; a device's token that no column stands for is a bug."""
    golden, names = on.golden, on.golden.declared
    tokens, scores = (stage_rows(golden, run, names[name]) for name in (stage, SCORES[stage]))
    due = sum(row.shape[0] for place, row in golden.rows.items() if place[0] == "float32" and place[3] == stage)
    if tokens is None or scores is None or len(tokens.golden) != len(scores.golden):
        count = 0 if tokens is None else len(tokens.golden)
        return _nothing(stage, f"{count} of {due} rows have tokens and logits on both sides")
    mine, theirs = tokens.golden, tokens.device.astype(np.int64)
    if stage.startswith("drafter"):
        mine, theirs = vocabulary.columns(mine), vocabulary.columns(theirs)
    legal = (theirs >= 0) & (theirs < scores.golden.shape[1])
    theirs = np.where(legal, theirs, mine)
    choices, apart = judge(scores.golden, mine, theirs, row_noise(scores)), on.apart(scores)
    _, step = regrets(scores.golden, mine, theirs)
    kl, relative, finite = _moved(scores.golden, scores.device)
    device = np.where(finite[:, None], scores.device.astype(np.float32), -np.inf)
    return Judged(
        stage=stage,
        verdict=np.where(legal, np.where(apart & (choices.verdict == BUG), UNKNOWN, choices.verdict), BUG),
        regret=np.where(legal, choices.regret, np.inf),
        near=legal & (mine != theirs) & (choices.regret <= 2 * step),
        kl=kl,
        overlap=np.stack(list(topk_overlap(scores.golden, device, KS).values()), axis=1),
        relative=relative,
        finite=finite,
        prompt=tokens.prompt,
        round=tokens.round,
        position=tokens.position,
        slot=_slots(tokens.prompt, tokens.round),
        lack=_lack(len(tokens.golden), due, measure(scores.golden, scores.floor).rel_l2, choices.count(NOISE))
        or (str(on.own) if apart.any() else ""),
    )


def _lack(rows: int, due: int, floor: float, explained: int) -> str:
    if rows < due:
        return f"only {rows} of {due} rows are there on both sides"
    if explained and floor > WIDEST:
        return f"the noise floor is {floor:.0%} of the golden: it explains nothing"
    return ""


def _nothing(stage: str, lack: str) -> Judged:
    none, words = np.empty(0), np.empty(0, dtype="U4")
    return Judged(stage, words, *[none] * 3, np.empty((0, 3)), none, none == 0, *[none.astype(np.int64)] * 4, lack)


def _slots(prompt: np.ndarray, round_: np.ndarray) -> np.ndarray:
    """The number of each row among its round's rows."""
    number = np.arange(len(prompt))
    first = np.r_[True, (np.diff(prompt) != 0) | (np.diff(round_) != 0)]
    return number - np.maximum.accumulate(np.where(first, number, 0))


def _moved(golden: np.ndarray, device: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """KL(golden || device) in nats, largest relative difference, and which device rows are finite; each [R]."""
    parts = []
    step = max(BLOCK // golden.shape[1], 1)
    for start in range(0, len(golden), step):
        g, d = (side[start : start + step].astype(np.float64) for side in (golden, device))
        finite = np.isfinite(d).all(axis=1)
        d = np.where(finite[:, None], d, 0.0)
        p, q = _log_softmax(g), _log_softmax(d)
        kl = np.maximum((np.exp(p) * (p - q)).sum(axis=1), 0.0)
        largest = np.abs(d - g).max(axis=1) / np.maximum(np.abs(g).max(axis=1), np.finfo(np.float64).tiny)
        parts.append(np.stack([np.where(finite, kl, np.inf), np.where(finite, largest, np.inf), finite]))
    kl, relative, finite = np.concatenate(parts, axis=1)
    return kl, relative, finite.astype(bool)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
