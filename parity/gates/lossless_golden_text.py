"""Plain decoding along the golden's text: what is the same wrong with and without drafts shows only here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from parity.compare.choices import BUG, NOISE, TIE, judge
from parity.compare.report import FAIL, INCONCLUSIVE, PASS, Place
from parity.compare.rows import Clock, StageRows, stage_rows
from parity.compare.scores import NOISE_SIGMAS, row_noise
from parity.decode import NO_DRAFTS, TargetPassTap, told
from parity.errors import Inconclusive
from parity.gates.context import GateContext
from parity.gates.gate import Check
from parity.golden.views import TrustedGolden
from parity.rounds import untapped
from parity.seam import Device
from parity.stages import TARGET_LOGITS, TARGET_TOKENS, VERIFY_LOGITS, VERIFY_TOKENS

FLOAT32 = 1e-5
"""Relative error of a row of float32 logits that is rounding, as in the float32 policy: 2^-24 * sqrt(1000 * 12)."""

LOGITS = (TARGET_LOGITS, VERIFY_LOGITS)

BEYOND = 3.0
"""Error of the rows' logits, all together, in multiples of the golden's noise there: the policy's line between rounding
and a mistake. Tokens alone are blunt: rotating one position too far leaves all 24 of a short golden what they were."""

KEPT = (TARGET_TOKENS, VERIFY_TOKENS, *LOGITS)


class _MatchingShapeTap(TargetPassTap):
    """Forces only what has the shape of the pass: a prefill in several passes keeps its own experts."""

    def __call__(self, stage: str, value: np.ndarray) -> np.ndarray:
        rows = self.force.get(stage)
        if rows is not None and rows.shape != value.shape:
            if self.keep(stage):
                self.seen[stage] = np.array(value)
            return value
        return super().__call__(stage, value)


@dataclass
class GoldenTextResult:
    """What became of a golden's rows: how many, how those were judged that chose another, and the first such one.

    `off` are the rows' errors in logits, in multiples of the golden's noise, with their places; `unseen` counts the
    rows behind a prompt's last one whose logits the device did not show; `lost` the tokens to which it could not be
    led on, and `why` says so of the first prompt that has any.
    """

    rows: int = 0
    same: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    first: dict[str, Place] = field(default_factory=dict)
    off: list[tuple[float, Place]] = field(default_factory=list)
    unseen: int = 0
    lost: int = 0
    why: str = ""

    @property
    def pooled(self) -> float:
        """Root mean square of the rows' errors; 0 where the device showed no logits, which does not pass."""
        return float(np.sqrt(np.mean([size**2 for size, _ in self.off]))) if self.off else 0.0


def golden_text(context: GateContext, precision: str) -> Check:
    """Every emitted token of every golden prompt, chosen without drafts behind the golden's tokens and experts.

    A token that is not the golden's is judged by the golden's own logits: a tie or within noise, or a bug. The golden's
    token is used from there on, so that one tie hides nothing behind it. What a device cannot be led on to is not
    judged, and the check no pass.

    Raises:
        Inconclusive: the golden lacks logits, or the device does not continue with the tokens that a tap returns.
    """
    golden, device = context.golden, context.device(precision)
    truth, result = GoldenLogits(golden, precision), GoldenTextResult()
    for number, prompt in enumerate(golden.manifest.case.prompts):
        context.progress(number, len(golden.manifest.case.prompts), f"lossless {prompt.id}, the golden's text")
        own, why = _decode_along_golden(device, golden, number)
        result.lost, result.why = result.lost + len(prompt.generated.emitted) - len(own), result.why or why
        for step, (mine, (theirs, logits)) in enumerate(zip(prompt.generated.emitted, own, strict=False)):
            if logits is not None:
                result.off.append(truth.off(number, len(prompt.ids) + step - 1, logits))
            result.unseen += logits is None and step > 0
            result.rows += 1
            result.same += mine == theirs
            if mine != theirs:
                verdict, place = truth.judged(number, len(prompt.ids) + step - 1, mine, theirs)
                result.verdicts[verdict] += 1
                result.first.setdefault(verdict, place)
    return _check(result, precision)


class GoldenLogits:
    """The golden's logits of the emitted rows, by prompt and position, and their noise."""

    def __init__(self, golden: TrustedGolden, precision: str):
        self.float32 = precision == "float32" and not golden.manifest.case.kv_cache
        self.rows: dict[tuple[int, int], tuple[str, StageRows, int, float]] = {}
        for stage in LOGITS:
            held = {stage, stage.replace("logits", "tokens")} <= set(golden.manifest.stages)
            rows = (
                stage_rows(golden, golden, golden.declared[stage], device="float32", mode="chained") if held else None
            )
            if not held:
                raise Inconclusive(f"{golden.folder} holds no {stage} with its tokens: no choice can be judged by it")
            if rows is not None:
                self._take(golden, stage, rows)

    def _take(self, golden: TrustedGolden, stage: str, rows: StageRows) -> None:
        """The rows on the emitted path: those behind a rejected draft are not."""
        clocks = [Clock.of(case) for case in golden.manifest.case.prompts]
        if self.float32:
            noise = FLOAT32 * np.sqrt((rows.golden.astype(np.float64) ** 2).mean(axis=1))
        else:
            noise = row_noise(rows)
        for index, place in enumerate(
            zip(rows.prompt.tolist(), rows.round.tolist(), rows.position.tolist(), strict=True)
        ):
            prompt, round_, position = place
            if position < clocks[prompt].length(round_):
                self.rows[prompt, position] = stage, rows, index, float(noise[index])

    def judged(self, prompt: int, position: int, mine: int, theirs: int) -> tuple[str, Place]:
        """How a choice other than the golden's is explained, and where it is."""
        scores, noise, place = self._row(prompt, position)
        place = replace(place, stage=place.stage.replace("logits", "tokens"))
        if not 0 <= theirs < scores.shape[1]:
            return BUG, place
        choice = judge(scores, np.array([mine]), np.array([theirs]), np.array([noise]))
        tied = self.float32 and choice.verdict[0] == TIE and choice.regret[0] > NOISE_SIGMAS * noise
        return BUG if tied else str(choice.verdict[0]), place

    def off(self, prompt: int, position: int, logits: np.ndarray) -> tuple[float, Place]:
        """RMS error of a row of logits [V] over the row's noise; infinite where it is no such row, or not finite."""
        scores, noise, place = self._row(prompt, position)
        if logits.shape != scores[0].shape or not np.isfinite(logits).all():
            return float("inf"), place
        return float(np.sqrt(((logits.astype(np.float64) - scores[0]) ** 2).mean()) / noise), place

    def _row(self, prompt: int, position: int) -> tuple[np.ndarray, float, Place]:
        """The golden's logits [1, V] of an emitted row, their noise, and where they are."""
        if (prompt, position) not in self.rows:
            raise Inconclusive(f"the golden holds no logits of prompt {prompt}, position {position}")
        stage, rows, index, noise = self.rows[prompt, position]
        return rows.golden[index : index + 1], noise, Place(stage, None, prompt, int(rows.round[index]), position)


def _decode_along_golden(
    device: Device, golden: TrustedGolden, number: int
) -> tuple[list[tuple[int, np.ndarray | None]], str]:
    """What the device chooses for each emitted token of a prompt, and from which logits, led along the golden's
    choices; where it cannot be led on, that ends there, and why."""
    case = golden.manifest.case
    prompt = case.prompts[number]
    emitted = prompt.generated.emitted
    tap = _MatchingShapeTap(_golden_choices(golden, number, 0, TARGET_TOKENS), KEPT.__contains__)
    first = int(device.prefill(prompt.ids, case.max_new_tokens, tap))
    own = [_own_choice(tap, TARGET_TOKENS, first, emitted[0])]
    if first != emitted[0]:
        return own, _not_led(TARGET_TOKENS, f"prompt {number}: prefill returns {first}, the golden has {emitted[0]}")
    for token, (round_, row) in zip(emitted[1:], _emitted_rows(Clock.of(prompt)), strict=True):
        force = {
            name: value[row : row + 1] for name, value in _golden_choices(golden, number, round_, VERIFY_TOKENS).items()
        }
        tap = _MatchingShapeTap(force, KEPT.__contains__)
        chosen = device.verify(NO_DRAFTS, tap)
        own.append(_own_choice(tap, VERIFY_TOKENS, chosen[0], token))
        fresh = [int(token) for token in device.commit(NO_DRAFTS, told(tap, chosen), untapped)]
        if fresh != [token]:
            said = f"prompt {number}, round {round_}: commit is given {token} and emits {fresh}"
            if VERIFY_TOKENS in tap.seen:
                raise Inconclusive(said)
            return own, _not_led(VERIFY_TOKENS, said)
    return own, ""


def _not_led(stage: str, said: str) -> str:
    return f"{said}, and the device hands over no {stage}, by which the tap would lead it on with the golden's token"


def _own_choice(tap: TargetPassTap, stage: str, returned: int, due: int) -> tuple[int, np.ndarray | None]:
    """The device's own choice, before it was led on, and the logits of a prompt's last row or of a pass of one row.

    A token that no tap saw is the device's own: it was not told the golden's.

    Raises:
        Inconclusive: the tap saw tokens, and the device returned another than the tap did.
    """
    if stage in tap.seen and int(returned) != due:
        raise Inconclusive(
            f"the device does not continue with the {stage} that a tap returns: {int(returned)}, led on with {due}"
        )
    logits = tap.seen.get(stage.replace("tokens", "logits"))
    own = int(tap.seen[stage].reshape(-1)[-1]) if stage in tap.seen else int(returned)
    if logits is None or not len(logits) or (stage == VERIFY_TOKENS and len(logits) != 1):
        return own, None
    return own, logits[-1]


def _golden_choices(golden: TrustedGolden, prompt: int, round_: int, tokens: str) -> dict[str, np.ndarray]:
    """The golden's choices of a target pass: its tokens and its experts."""
    names = [name for name in golden.manifest.stages if name == tokens or name.endswith(".experts")]
    held = {name: golden.contents("float32", prompt, round_, name) for name in names}
    return {name: value for name, value in held.items() if value is not None}


def _emitted_rows(clock: Clock) -> Iterator[tuple[int, int]]:
    """Round and row of each token behind the first: the rows of a round that were emitted."""
    for round_, count in enumerate(clock.emitted[1:], 1):
        yield from ((round_, row) for row in range(count))


def _check(result: GoldenTextResult, precision: str) -> Check:
    counts = ", ".join(
        f"{result.verdicts[name]} {name}" for name in (TIE, NOISE, BUG) if result.verdicts[name] or name == BUG
    )
    line = f"{result.same} of {result.rows} tokens the golden's, {counts}"
    line += f"; their logits off by {result.pooled:.2g} x noise" if result.off else ""
    wrong = not result.pooled <= BEYOND
    place = result.first.get(BUG) or (
        next(place for size, place in result.off if not size <= BEYOND) if wrong else None
    )
    line += (
        f"; the device showed no verify.logits of {result.unseen} tokens: give the tap those of every row"
        if result.unseen
        else ""
    )
    line += f"; {result.lost} tokens not judged: {result.why}" if result.lost else ""
    figures = {
        "tokens": result.rows,
        "same": result.same,
        "others": dict(result.verdicts),
        "noise": result.pooled,
        "unseen": result.unseen,
        "lost": result.lost,
    }
    verdict = FAIL if place else INCONCLUSIVE if result.unseen or result.lost else PASS
    return Check(f"plain decoding = the golden's text, {precision}", verdict, line, figures, place)
