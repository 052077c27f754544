"""Ways through a prompt in passes of several rows, and their rows compared with those decoded one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parity.compare.choices import BUG, NOISE, SAME, TIE, judge, judge_experts, ranked
from parity.compare.numbers import bound_verdict
from parity.compare.report import FAIL, INCONCLUSIVE, PASS, Place, join
from parity.decode import Decoded, TargetPassTap
from parity.errors import Inconclusive
from parity.gates.context import NoiseFloors
from parity.policy import read_policy
from parity.rounds import untapped
from parity.seam import Device
from parity.stages import VERIFY_LOGITS, VERIFY_TOKENS


@dataclass(frozen=True)
class DecodeCase:
    """A prompt [S], its number in the golden, and how many tokens to decode behind it."""

    name: str
    prompt: int
    ids: tuple[int, ...]
    budget: int


@dataclass(frozen=True)
class VerifyPass:
    """What one verify pass showed of rows that a plain decoding has as well.

    Attributes:
        first: row number of the plain decoding that row 0 repeats.
        rows: how many rows repeat one.
        drafts: drafts in the pass.
        seen: stage to the device's rows; only the first `rows` are on the plain decoding's path.
        tokens: what `verify` returned.
    """

    case: DecodeCase
    first: int
    rows: int
    drafts: int
    seen: dict[str, np.ndarray]
    tokens: np.ndarray


def accepting_passes(
    device: Device, case: DecodeCase, plain: Decoded, drafts: int, phase: int = 0
) -> Iterator[VerifyPass]:
    """Passes of this many true drafts, all accepted, until the plain decoding ends.

    Args:
        phase: drafts of the first pass where not 0, so that later ones meet other positions.
    """
    step = _start(device, case, plain)
    while step < plain.steps:
        count = phase if phase and not step else drafts
        count = min(count, plain.steps - 1 - step)
        yield _accept(device, case, plain, step, count)
        step += count + 1


def rejecting_passes(
    device: Device, case: DecodeCase, plain: Decoded, drafts: int, true: int, behind: int
) -> Iterator[VerifyPass]:
    """One pass whose drafts are wrong from number `true` on, behind `behind` accepted passes; it ends the walk."""
    step = _start(device, case, plain)
    for _ in range(behind):
        count = min(drafts, plain.steps - 1 - step)
        if count < 0:
            return
        _accept(device, case, plain, step, count)
        step += count + 1
    if plain.steps - step <= true:
        return
    behind_them = plain.tokens[step + 1 + true]
    # The ids behind the true ones are other tokens of the same text: legal, and wrong at the first of them.
    other = next((token for token in case.ids if token != behind_them), None)
    if other is None:
        return
    ids = np.array([*plain.tokens[step + 1 : step + 1 + true], *[other] * (drafts - true)], np.int64)
    yield _look(device, case, plain, step, true + 1, ids)


def _start(device: Device, case: DecodeCase, plain: Decoded) -> int:
    first = int(device.prefill(case.ids, case.budget, untapped))
    if first != plain.tokens[0]:
        raise Inconclusive(f"{case.name}: prefill gave {plain.tokens[0]} once and {first} the next time")
    return 0


def _accept(device: Device, case: DecodeCase, plain: Decoded, step: int, count: int) -> VerifyPass:
    ids = np.array(plain.tokens[step + 1 : step + 1 + count], np.int64)
    verify_pass = _look(device, case, plain, step, count + 1, ids)
    true = np.array(plain.tokens[step + 1 : step + 2 + count], np.int64)
    fresh = device.commit(ids, true, untapped)
    if list(fresh) != list(true):
        raise Inconclusive(
            f"{case.name}: {count} accepted drafts emitted {[int(token) for token in fresh]}, not {true.tolist()} "
            "(see lossless)"
        )
    return verify_pass


def _look(device: Device, case: DecodeCase, plain: Decoded, step: int, rows: int, ids: np.ndarray) -> VerifyPass:
    """One verify pass with the plain decoding's experts and tokens forced in the rows that repeat it."""
    tokens = np.array(plain.tokens[step + 1 : step + 1 + rows], np.int64)
    tap = TargetPassTap(plain.routed(step, rows) | {VERIFY_TOKENS: tokens})
    returned = np.asarray(device.verify(ids, tap))
    if VERIFY_LOGITS not in tap.seen:
        raise Inconclusive(f"the device hands over no {VERIFY_LOGITS} in verify")
    tap.seen.setdefault(VERIFY_TOKENS, returned)  # what verify returns is shown always
    return VerifyPass(case, step, rows, len(ids), tap.seen, returned)


@dataclass(frozen=True)
class RowPlace:
    """One row of a pass: where it stands, without what it held."""

    case: DecodeCase
    first: int
    row: int
    drafts: int


@dataclass
class Agreement:
    """Collects passes and judges them by the policy's bounds for `verify.logits`.

    In float32 errors are relative; any other token or expert is a bug. In bfloat16 they are multiples of the
    golden's noise: decode and verify are two roundings of the same row, which part by sqrt(2) of one
    rounding's error at most, and so stay within the 1.5 that a device is allowed against the golden. Another
    token or expert has to be a tie, or within the row's noise, by the scores of the row decoded alone.
    """

    precision: str
    noise: NoiseFloors
    errors: list[float] = field(default_factory=list)
    largest: list[float] = field(default_factory=list)
    places: list[RowPlace] = field(default_factory=list)
    equal: int = 0
    tokens: Counter[str] = field(default_factory=Counter)
    experts: Counter[str] = field(default_factory=Counter)
    bug: RowPlace | None = None

    def add(self, verify_pass: VerifyPass, plain: Decoded) -> None:
        """Compare the rows of one pass."""
        mine, theirs = (
            plain.rows[VERIFY_LOGITS][verify_pass.first :][: verify_pass.rows],
            verify_pass.seen[VERIFY_LOGITS][: verify_pass.rows],
        )
        if theirs.shape != mine.shape:
            raise ValueError(f"verify.logits have shape {theirs.shape}, decoded alone {mine.shape}")
        self.equal += int((mine == theirs).all(axis=1).sum())
        scores = mine.astype(np.float64)
        gap = theirs.astype(np.float64) - scores
        gap[~np.isfinite(gap)] = np.inf
        size = np.maximum(np.sqrt((scores**2).mean(axis=1)), np.finfo(np.float32).tiny)
        self.errors += (np.sqrt((gap**2).mean(axis=1)) / size).tolist()
        self.largest += (np.abs(gap).max(axis=1) / size).tolist()
        self.places += [_spot(verify_pass, row) for row in range(verify_pass.rows)]
        self._tokens(verify_pass, plain, mine.astype(np.float32))
        for name in plain.experts.keys() & verify_pass.seen.keys():
            self._experts(name, verify_pass, plain)

    def _tokens(self, verify_pass: VerifyPass, plain: Decoded, scores: np.ndarray) -> None:
        mine = np.array(plain.tokens[verify_pass.first + 1 : verify_pass.first + 1 + verify_pass.rows])
        theirs = np.asarray(verify_pass.seen[VERIFY_TOKENS][: verify_pass.rows], np.int64)
        legal = (theirs >= 0) & (theirs < scores.shape[1])
        noise = self._row_noise(VERIFY_LOGITS, scores)
        verdicts = judge(scores, *ranked(scores, mine, np.where(legal, theirs, mine)), noise).verdict
        self._count(self.tokens, np.where(legal, verdicts, BUG), verify_pass)

    def _experts(self, name: str, verify_pass: VerifyPass, plain: Decoded) -> None:
        logits = name.replace(".experts", ".router_logits")
        rows = slice(verify_pass.first, verify_pass.first + verify_pass.rows)
        scores = plain.rows[logits][rows].astype(np.float32)
        mine, theirs = (
            plain.rows[name][rows].astype(np.int64),
            verify_pass.seen[name][: verify_pass.rows].astype(np.int64),
        )
        self._count(
            self.experts, judge_experts(scores, mine, theirs, self._row_noise(logits, scores)).verdict, verify_pass
        )

    def _row_noise(self, stage: str, scores: np.ndarray) -> np.ndarray:
        return np.zeros(len(scores)) if self.precision == "float32" else self.noise.rms(stage, scores)

    def _count(self, into: Counter[str], verdicts: np.ndarray, verify_pass: VerifyPass) -> None:
        verdicts = np.where(verdicts == SAME, SAME, BUG) if self.precision == "float32" else verdicts
        into.update(verdicts.tolist())
        if self.bug is None and BUG in verdicts:
            self.bug = _spot(verify_pass, int(np.flatnonzero(verdicts == BUG)[0]))

    @property
    def unit(self) -> str:
        """Of the figures."""
        return "x noise" if self.precision == "bfloat16" else "relative"

    def statistics(self) -> dict[str, float]:
        """Pooled error, worst row and largest element, in the unit of the policy."""
        errors = np.array(self.errors)
        pooled, worst, element = float(np.sqrt((errors**2).mean())), float(errors.max()), float(max(self.largest))
        if self.precision == "float32":
            return {"l2": pooled, "worst_row": worst, "largest": element}
        noisy = self.noise.noisy(VERIFY_LOGITS)
        return {
            "l2": pooled / self.noise.pooled(VERIFY_LOGITS),
            "worst_row": worst / noisy,
            "largest": element / (noisy * self.noise.crest(VERIFY_LOGITS)),
        }

    def verdict(self) -> str:
        """Fail on a bound or a bug, inconclusive without rows."""
        if not self.errors:
            return INCONCLUSIVE
        bounds, statistics = read_policy(None, self.precision).row(VERIFY_LOGITS, "chained").bounds, self.statistics()
        verdicts = [bound_verdict(statistics[name], bounds[name]) for name in statistics if name in bounds]
        return join([*verdicts, FAIL if self.bug else PASS])

    def evidence(self) -> str:
        """Counts and the worst figures."""
        if not self.errors:
            return "no row could be compared: every plain decoding ended at its first token"
        statistics = self.statistics()
        line = f"{len(self.errors)} rows, {self.equal} bit-equal, all {statistics['l2']:.2g}, "
        line += f"worst row {statistics['worst_row']:.2g} {self.unit}; tokens {_words(self.tokens)}"
        flips = sum(self.experts.values()) - self.experts[SAME]
        line += f"; {flips} expert flips" + (f" ({_words(self.experts, SAME)})" if flips else "")
        return line

    def figures(self) -> dict[str, Any]:
        """For JSON."""
        statistics = self.statistics() if self.errors else {}
        counts = {"rows": len(self.errors), "bit_equal": self.equal, "unit": self.unit}
        return counts | statistics | {"tokens": dict(self.tokens), "experts": dict(self.experts)}

    def worst(self) -> tuple[str, Place]:
        """Words and place of the first bug, or of the worst row."""
        spot = self.bug or self.places[int(np.argmax(self.errors))]
        position = len(spot.case.ids) + spot.first + spot.row
        words = f"{spot.case.name}, {spot.drafts} drafts, row {spot.row}, position {position}"
        return words, Place(VERIFY_LOGITS, None, spot.case.prompt, 1 + spot.first, position)


def _spot(verify_pass: VerifyPass, row: int) -> RowPlace:
    return RowPlace(verify_pass.case, verify_pass.first, row, verify_pass.drafts)


def _words(counts: Counter[str], without: str = "") -> str:
    shown = (name for name in (SAME, TIE, NOISE, BUG) if name != without and (counts[name] or name in (SAME, BUG)))
    return ", ".join(f"{counts[name]} {name}" for name in shown)
