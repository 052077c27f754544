"""Speculation emits what plain greedy decoding of the same device emits; where it does not, a tie has to explain it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parity.compare.choices import BUG, NOISE, SAME, TIE, judge, judge_experts, ranked, ulp
from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, PASS, Place
from parity.decode import Decoded, TargetPassTap, accepted, decode, ended
from parity.errors import DeviceFailed, Inconclusive, NotOffered, NotShown
from parity.gates.context import GateContext, NoiseFloors
from parity.gates.gate import Check
from parity.gates.lossless_golden_text import golden_text
from parity.gates.lossless_loop import loop_checks
from parity.gates.made_up import ONE_PIECE, agreements, try_accept_rule
from parity.rounds import Drafts, drafted, untapped
from parity.seam import Device, Looping, PlainDecoding
from parity.stages import VERIFY_LOGITS, VERIFY_TOKENS

TWO_ULP, ROUTER = "within two ULP", "behind a router tie"
EXPLAINED = (TIE, TWO_ULP, NOISE, ROUTER)


def checks(context: GateContext) -> Iterator[Check]:
    """Speculation against plain decoding, and that against the golden, in float32 and the context's precision; the
    accept rule alone.

    A loop in one piece is run whole, where it decodes plainly as well; one that does not is inconclusive.
    """
    noise = NoiseFloors(context.golden)
    for precision in dict.fromkeys(("float32", context.precision)):
        device = context.device(precision)
        if isinstance(device, Looping) and isinstance(device, PlainDecoding):
            yield from loop_checks(context, precision)
            continue
        yield _made(f"speculation = plain decoding, {precision}", equals_plain_decoding, context, noise, precision)
        yield _made(f"plain decoding = the golden's text, {precision}", golden_text, context, precision)
    yield accepts_by_rule(context)


def _made(name: str, check: Callable[..., Check], *of: Any) -> Check:
    """One check; where its evidence is missing, that it is, which leaves the checks behind it theirs."""
    try:
        return check(*of)
    except (NotOffered, NotShown, DeviceFailed):
        raise
    except Inconclusive as error:
        return Check(name, INCONCLUSIVE, str(error))


def equals_plain_decoding(context: GateContext, noise: NoiseFloors, precision: str) -> Check:
    """Every golden prompt; every divergence classified by the device's own logits."""
    case, device = context.golden.manifest.case, context.device(precision)
    runs: list[AlignedRun] = []
    verdicts: Counter[str] = Counter()
    first: Divergence | None = None
    for number, prompt in enumerate(case.prompts):
        context.progress(number, len(case.prompts), f"lossless {prompt.id}")
        run, plain = align(device, number, prompt.ids, case.max_new_tokens, case.drafts if case.schedule else None)
        runs.append(run)
        for divergence in run.divergences:
            verdict = classify_divergence(divergence, plain, noise if precision == "bfloat16" or noise.flips else None)
            verdicts[verdict] += 1
            first = divergence if first is None or (verdict == BUG and verdicts[BUG] == 1) else first
    return _check(precision, runs, verdicts, first)


def classify_divergence(divergence: Divergence, plain: Decoded, noise: NoiseFloors | None) -> str:
    """Why speculation chose another token: by the plain row's logits; in float32 (no noise) nothing explains it.

    A router tie on the way explains any regret: the first expert that parted must itself be a tie or within
    noise, by the plain row's router logits. One or two ULP are bfloat16's, of the larger logit.
    """
    scores = divergence.scores[None]
    if noise is None or not 0 <= divergence.theirs < scores.shape[1]:
        return BUG
    mine, theirs = ranked(scores, np.array([divergence.mine]), np.array([divergence.theirs]))
    judged = judge(scores, mine, theirs, noise.rms(VERIFY_LOGITS, scores))
    step = ulp(np.maximum(abs(scores[0, divergence.mine]), abs(scores[0, divergence.theirs])))
    if judged.verdict[0] != TIE and judged.regret[0] <= 2 * step:
        return TWO_ULP
    return str(judged.verdict[0]) if judged.verdict[0] != BUG else _explained_by_router_tie(divergence, plain, noise)


def _explained_by_router_tie(divergence: Divergence, plain: Decoded, noise: NoiseFloors) -> str:
    """Whether a router tie came before."""
    if divergence.flip is None:
        return BUG
    name, row, experts = divergence.flip
    logits = name.replace(".experts", ".router_logits")
    scores, mine = (plain.rows[stage][row : row + 1] for stage in (logits, name))
    scores = scores.astype(np.float32)
    judged = judge_experts(scores, mine.astype(np.int64), experts[None].astype(np.int64), noise.rms(logits, scores))
    return ROUTER if judged.verdict[0] in (SAME, TIE, NOISE) else BUG


def _check(precision: str, runs: list[AlignedRun], verdicts: Counter[str], first: Divergence | None) -> Check:
    tokens, lost, drafts = (sum(getattr(run, name) for run in runs) for name in ("tokens", "lost", "drafts"))
    wrong = next((run.wrong for run in runs if run.wrong), "")
    whole = sum(not run.divergences and not run.lost for run in runs)
    counts = ", ".join(f"{verdicts[name]} {name}" for name in (*EXPLAINED, BUG) if verdicts[name] or name in (TIE, BUG))
    line = f"{whole} of {len(runs)} prompts the same, {tokens} tokens, {drafts} accepted drafts; "
    line += f"{sum(verdicts.values())} rows chose another: {counts}"
    line += f"; {lost} tokens not reached" if lost else ""
    place = Place(VERIFY_TOKENS, None, first.prompt, first.round, first.position) if first else None
    verdict = FAIL if verdicts[BUG] or wrong else INCONCLUSIVE if lost or not drafts else PASS
    line += f"; {wrong}" if wrong else "" if drafts else "; no draft was ever accepted: losslessness was not tried"
    figures = {"prompts": len(runs), "same": whole, "tokens": tokens, "lost": lost, "accepted_drafts": drafts}
    figures |= {"rounds": sum(run.rounds for run in runs), "divergences": dict(verdicts)}
    return Check(
        f"speculation = plain decoding, {precision}", verdict, line, figures, None if verdict == PASS else place
    )


def accepts_by_rule(context: GateContext) -> Check:
    """The accept step alone, nothing cut."""
    name, golden, device = "accept rule", context.golden.manifest.case, context.device()
    ids = golden.prompts[0].ids
    if isinstance(device, Looping):
        return Check(name, NOT_JUDGED, ONE_PIECE)
    try:
        tried = try_accept_rule(device, ids, agreements(ids, golden.k, device.describe().eos))
    except Inconclusive as error:
        return Check(name, INCONCLUSIVE, f"not checked: {error}")
    figures = {"rounds": tried.rounds, "wrong": list(tried.wrong)}
    if tried.wrong:
        return Check(
            name, FAIL, f"{len(tried.wrong)} of {tried.rounds} rounds emit other tokens; {tried.wrong[0]}", figures
        )
    return Check(name, PASS, f"{tried.rounds} made-up rounds, every pattern of accepted and rejected drafts", figures)


@dataclass(frozen=True)
class Divergence:
    """A row in which speculation chose another token than plain decoding.

    Attributes:
        prompt: its number in the golden.
        step: number of the emitted token; row `step - 1` of the plain decoding chose the plain one.
        round: of the speculation.
        position: of the row.
        mine, theirs: the plain and the speculative token.
        scores: the plain row's logits [V].
        flips: experts of this and earlier rows that differ from the plain ones, the first of them by position,
            then layer: (stage, plain row number, speculative experts [X]), or None.
    """

    prompt: int
    step: int
    round: int
    position: int
    mine: int
    theirs: int
    scores: np.ndarray
    flip: tuple[str, int, np.ndarray] | None


@dataclass
class AlignedRun:
    """One prompt: what was compared, and what parted.

    Attributes:
        tokens: emitted tokens compared, prefill's included.
        lost: tokens of the plain decoding that could not be reached.
        drafts: accepted drafts among them.
        wrong: an emission that is not what the accept rule says, in words.
    """

    tokens: int = 0
    lost: int = 0
    rounds: int = 0
    drafts: int = 0
    divergences: list[Divergence] = field(default_factory=list)
    wrong: str = ""


def align(
    device: Device, prompt: int, ids: tuple[int, ...], budget: int, drafts: Drafts | None = None
) -> tuple[AlignedRun, Decoded]:
    """Decode a prompt plainly, then speculate with the device's own drafts.

    Until the two part nothing is forced: this is the device as a user runs it. Where they part, the plain
    token is forced in the rows that are on the plain path, and the comparison continues behind it.
    """
    plain = decode(device, ids, budget)
    return _Alignment(device, prompt, ids, budget, plain, drafts).run(), plain


class _Alignment:
    def __init__(
        self,
        device: Device,
        prompt: int,
        ids: tuple[int, ...],
        budget: int,
        plain: Decoded,
        ks: Drafts | None,
    ):
        self.device, self.prompt, self.ids, self.budget, self.plain = device, prompt, ids, budget, plain
        self.ks = ks
        self.eos = device.describe().eos
        self.found = AlignedRun()
        self.experts: dict[str, list[np.ndarray]] = {}  # of the committed rows, as speculation chose them

    def run(self) -> AlignedRun:
        emitted = [int(self.device.prefill(self.ids, self.budget, untapped))]
        if emitted[0] != self.plain.tokens[0]:
            raise Inconclusive(f"prompt {self.prompt}: prefill gave {self.plain.tokens[0]} once and {emitted[0]} next")
        while not ended(emitted, self.eos, self.budget) and not self.found.wrong:
            fresh = self._round(len(emitted))
            emitted += fresh
            self.found.rounds += 1
            if emitted != list(self.plain.tokens[: len(emitted)]):
                break
        self.found.tokens = next(
            (step for step, pair in enumerate(zip(emitted, self.plain.tokens, strict=False)) if pair[0] != pair[1]),
            min(len(emitted), len(self.plain.tokens)),
        )
        self.found.lost = len(self.plain.tokens) - self.found.tokens
        return self.found

    def _round(self, step: int) -> list[int]:
        """One round behind `step` emitted tokens; what it emitted."""
        drafts = np.asarray(drafted(self.device, untapped, self.found.rounds + 1, self.ks), np.int64)
        rows = self._on_path(drafts, step)
        true = np.array(self.plain.tokens[step : step + rows], np.int64)
        tap = TargetPassTap({VERIFY_TOKENS: true})
        returned = np.asarray(self.device.verify(drafts, tap), np.int64)
        own = np.asarray(tap.seen.get(VERIFY_TOKENS, returned), np.int64)
        self._compare(own[:rows], true, step, tap.seen)
        fresh = [int(token) for token in self.device.commit(drafts, returned, untapped)]
        due = accepted(drafts.tolist(), returned.tolist(), self.eos, self.budget - step)
        if fresh != due:
            where = f"prompt {self.prompt}, round {self.found.rounds + 1}"
            self.found.wrong = (
                f"{where}: drafts {drafts.tolist()}, chosen {returned.tolist()}: emitted {fresh}, not {due}"
            )
        self.found.drafts += int(np.cumprod([a == b for a, b in zip(fresh, drafts, strict=False)]).sum())
        self._keep(tap.seen, len(fresh))
        return fresh

    def _on_path(self, drafts: np.ndarray, step: int) -> int:
        """Rows whose input is the plain decoding's: the last token, and the drafts before the first wrong one."""
        behind = self.plain.tokens[step : step + len(drafts)]
        right = np.cumprod([a == b for a, b in zip(drafts.tolist(), behind, strict=False)]).sum()
        return min(int(right) + 1, len(self.plain.tokens) - step)

    def _compare(self, own: np.ndarray, true: np.ndarray, step: int, seen: Mapping[str, np.ndarray]) -> None:
        for row in np.flatnonzero(own != true).tolist():
            at = step + row
            scores = self.plain.rows[VERIFY_LOGITS][at - 1].astype(np.float32)
            place = (self.prompt, at, self.found.rounds + 1, len(self.ids) + at - 1)
            flip = self._flip(seen, row)
            self.found.divergences.append(Divergence(*place, int(true[row]), int(own[row]), scores, flip))

    def _flip(self, seen: Mapping[str, np.ndarray], row: int) -> tuple[str, int, np.ndarray] | None:
        """The first row, then layer, up to this row of a pass, whose experts are others than the plain ones."""
        mine = {name: experts for name, experts in self.plain.experts.items() if name in seen}
        theirs = {name: np.concatenate([*self.experts.get(name, []), seen[name][: row + 1]]) for name in mine}
        parted = [
            (int(row), layer, name) for layer, name in enumerate(mine) for row in _others(mine[name], theirs[name])
        ]
        if not parted:
            return None
        place, _, name = min(parted)
        return name, place, theirs[name][place]

    def _keep(self, seen: Mapping[str, np.ndarray], rows: int) -> None:
        for name, experts in seen.items():
            if name.endswith(".experts"):
                self.experts.setdefault(name, []).append(experts[:rows])


def _others(mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Rows of `theirs` [R, X] whose experts are not those of the same row of `mine`, as sets."""
    return np.flatnonzero((np.sort(mine[: len(theirs)]) != np.sort(theirs)).any(axis=1))
