"""One group of logits, row by row: the choice, its regret, how far the distribution moved, and the device's own
choice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parity.compare.basis import Basis
from parity.compare.choices import BUG, NOISE, SAME, TIE, judge, regrets
from parity.compare.report import FAIL, INCONCLUSIVE, PASS, Place
from parity.compare.rows import WIDEST, StageRows, stage_rows
from parity.compare.scores import SCORES, paired, row_noise
from parity.compare.vocabulary import DraftVocabulary, draft_vocabulary
from parity.errors import Inconclusive
from parity.gates.acceptance_counts import log_softmax
from parity.gates.gate import Check
from parity.golden.views import DumpView, TrustedGolden
from parity.metrics import measure, topk_overlap
from parity.stages import DRAFT_TOKENS, DRAFTER_LOGITS, TARGET_TOKENS, VERIFY_TOKENS


def read_draft_vocabulary(golden: TrustedGolden) -> DraftVocabulary:
    """Which token each column of the golden's draft logits stands for.

    Raises:
        Inconclusive: the golden holds no draft logits, or its draft tokens are not what the checkpoint says.
    """
    names = golden.declared
    if not {DRAFTER_LOGITS, DRAFT_TOKENS} <= set(golden.manifest.stages):
        raise Inconclusive(f"{golden.folder} lacks drafter.logits or drafter.draft_tokens: nothing maps draft columns")
    scores, chosen = (
        stage_rows(golden, golden, names[name], device="float32", mode="chained")
        for name in (DRAFTER_LOGITS, DRAFT_TOKENS)
    )
    if scores is None or chosen is None:
        raise Inconclusive(f"{golden.folder} has no round: nothing maps draft columns to tokens")
    columns, tokens = scores.golden.argmax(axis=1), chosen.golden
    vocabulary = draft_vocabulary(golden, scores, chosen)
    if golden.manifest.case.draws:
        return _of_drawn(golden, vocabulary, tokens)
    wrong = np.flatnonzero(vocabulary.tokens[columns] != tokens)
    if len(wrong):
        column, token = columns[wrong[0]], tokens[wrong[0]]
        said = f"{vocabulary.source} says {vocabulary.tokens[column]}"
        raise Inconclusive(
            f"the golden drafts token {token} from column {column}, {said}: "
            "which of them is right is not for this gate to say"
        )
    return vocabulary


def _of_drawn(golden: TrustedGolden, vocabulary: DraftVocabulary, tokens: np.ndarray) -> DraftVocabulary:
    """That of a golden whose drafts [R] are drawn: no row tells which column a token was drawn from."""
    if not vocabulary.whole or not np.isin(tokens, vocabulary.tokens).all():
        said = f"{vocabulary.source} does not name the token of every column that could be drawn"
        raise Inconclusive(f"{golden.folder} samples its drafts, and {said}")
    return vocabulary


GREEDY = (TARGET_TOKENS, VERIFY_TOKENS, DRAFT_TOKENS)
"""Stages that hold a greedy choice of tokens."""

KS = (1, 5, 50)
UNKNOWN = "unknown"
"""The verdict of another choice in a row that ran through experts of the run's own, of which nothing is known."""
BLOCK = 2**22
"""Logits taken to float64 at a time: 32 MiB of them."""


@dataclass(frozen=True)
class JudgedRows:
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
        bugs: np.ndarray = self.verdict == BUG
        return bugs

    def of(self, rows: np.ndarray) -> JudgedRows:
        """Some of the rows."""
        arrays = {name: value[rows] for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return replace(self, **arrays)

    def figures(self) -> dict[str, Any]:
        """Counts, means and maxima."""
        counts = {name: int((self.verdict == name).sum()) for name in (SAME, TIE, NOISE, BUG)}
        figures = {"rows": len(self.verdict), **counts, "tie_at_two_ulp": int(self.near.sum())}
        if not len(self.verdict):
            return figures
        return figures | {
            "regret_zero": int((self.regret == 0).sum()),
            "regret_mean": float(self.regret.mean()),
            "regret_max": float(self.regret.max()),
            "kl_mean": float(self.kl.mean()),
            "kl_max": float(self.kl.max()),
            "overlap": {f"top{k}": float(share) for k, share in zip(KS, self.overlap.mean(axis=0), strict=True)},
            "largest_relative": float(self.relative.max()),
            "not_finite": int((~self.finite).sum()),
        }


def judge_rows(on: Basis, run: DumpView, stage: str, vocabulary: DraftVocabulary) -> JudgedRows:
    """Every row of the logits behind a stage of tokens; a device's token that no column stands for is a bug."""
    golden, names = on.golden, on.golden.declared
    tokens, scores = (stage_rows(golden, run, names[name]) for name in (stage, SCORES[stage]))
    due = _due(golden, run, stage)
    if tokens is None or scores is None:
        return _nothing(
            stage, f"{0 if tokens is None else len(tokens.golden)} of {due} rows have tokens, and logits too"
        )
    tokens, scores = paired(tokens, scores)
    mine, theirs = tokens.golden, tokens.device.astype(np.int64)
    floor = measure(scores.golden, scores.noise_floor).rel_l2
    if stage.startswith("drafter"):
        mine, theirs = vocabulary.columns(mine), vocabulary.columns(theirs)
    legal = (theirs >= 0) & (theirs < scores.golden.shape[1])
    theirs = np.where(legal, theirs, mine)
    choices, apart = judge(scores.golden, mine, theirs, row_noise(scores)), on.excluded(scores)
    _, step = regrets(scores.golden, mine, theirs)
    kl, relative, finite = _moved(scores.golden, scores.device)
    device = np.where(finite[:, None], scores.device.astype(np.float32), -np.inf)
    return JudgedRows(
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
        lack=_lack(len(tokens.golden), due, floor, choices.count(NOISE)) or (str(on.own) if apart.any() else ""),
    )


def _due(golden: TrustedGolden, run: DumpView, stage: str) -> int:
    """Rows of a stage of tokens that a run shows with their logits."""
    count = 0
    for (variant, _, round_, name), row in golden.rows.items():
        if variant == "float32" and name == stage:
            last = "last" in (run.view.rows(stage, round_), run.view.rows(SCORES[stage], round_))
            count += 1 if last else row.shape[0]
    return count


def _lack(rows: int, due: int, floor: float, explained: int) -> str:
    if rows < due:
        return f"only {rows} of {due} rows are there on both sides"
    if explained and floor > WIDEST:
        return f"the noise floor is {floor:.0%} of the golden: it explains nothing"
    return ""


def _nothing(stage: str, lack: str) -> JudgedRows:
    none, flags, numbers = np.empty(0), np.empty(0, bool), np.empty(0, np.int64)
    return JudgedRows(
        stage=stage,
        verdict=np.empty(0, dtype="U4"),
        regret=none,
        near=flags,
        kl=none,
        overlap=np.empty((0, 3)),
        relative=none,
        finite=flags,
        prompt=numbers,
        round=numbers,
        position=numbers,
        slot=numbers,
        lack=lack,
    )


def _slots(prompt: np.ndarray, round_: np.ndarray) -> np.ndarray:
    """The number of each row among its round's rows."""
    number = np.arange(len(prompt))
    first = np.r_[True, (np.diff(prompt) != 0) | (np.diff(round_) != 0)]
    slots: np.ndarray = number - np.maximum.accumulate(np.where(first, number, 0))
    return slots


def _moved(golden: np.ndarray, device: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """KL(golden || device) in nats, largest relative difference, and which device rows are finite; each [R]."""
    parts = []
    step = max(BLOCK // golden.shape[1], 1)
    for start in range(0, len(golden), step):
        g, d = (side[start : start + step].astype(np.float64) for side in (golden, device))
        finite = np.asarray(np.isfinite(d).all(axis=1))
        d = np.where(finite[:, None], d, 0.0)
        p, q = log_softmax(g), log_softmax(d)
        kl = np.maximum((np.exp(p) * (p - q)).sum(axis=1), 0.0)
        largest = np.abs(d - g).max(axis=1) / np.maximum(np.abs(g).max(axis=1), np.finfo(np.float64).tiny)
        parts.append(np.stack([np.where(finite, kl, np.inf), np.where(finite, largest, np.inf), finite]))
    kl, relative, finite = np.concatenate(parts, axis=1)
    return kl, relative, finite.astype(bool)


def own_choices(golden: TrustedGolden, run: DumpView, vocabulary: DraftVocabulary) -> Check:
    """Every token of target, verify and drafter against the device's own logits; no golden number enters."""
    name, lacking = "its own logits", []
    counts: dict[str, dict[str, int]] = {}
    wrong: list[tuple[StageRows, int, int, int]] = []
    for stage in (stage for stage in GREEDY if SCORES[stage] in golden.declared):
        tokens, logits = (stage_rows(golden, run, golden.declared[name]) for name in (stage, SCORES[stage]))
        shared = None if tokens is None or logits is None else paired(tokens, logits)
        if shared is None or not len(shared[0].device) or len(shared[0].device) < _due(golden, run, stage):
            lacking.append(stage)
            continue
        tokens, logits = shared
        scores = logits.device.astype(np.float32)
        chosen, known = tokens.device.astype(np.int64), np.ones(len(scores), dtype=bool)
        best = scores == scores.max(axis=1, keepdims=True)
        lowest = best.argmax(axis=1)
        if stage.startswith("drafter"):
            lowest = vocabulary.tokens[lowest]
            known = lowest >= 0
        lacking += [f"{(~known).sum()} rows of {stage} (no column known)"] if not known.all() else []
        differ = np.flatnonzero(known & (chosen != lowest))
        counts[stage] = {"rows": len(chosen), "tied": int((best.sum(axis=1) > 1).sum()), "wrong": len(differ)}
        wrong += [(tokens, int(row), int(chosen[row]), int(lowest[row])) for row in differ]
    total, tied = (sum(count[what] for count in counts.values()) for what in ("rows", "tied"))
    figures = {"stages": counts, "vocabulary": vocabulary.source, "lacking": lacking}
    if wrong:
        rows, row, token, due = min(wrong, key=lambda at: (at[0].round[at[1]], at[0].prompt[at[1]]))
        place = Place(rows.named.name, None, *(int(x[row]) for x in (rows.prompt, rows.round, rows.position)))
        said = f"{len(wrong)} of {total} tokens are not the lowest id among their row's maxima: {token} for {due}"
        return Check(name, FAIL, said, figures, place)
    said = f"{total} tokens are the lowest id among the exact maxima of the row recorded ({tied} rows tie)"
    if lacking:
        return Check(name, INCONCLUSIVE, f"missing: {', '.join(lacking)}; {said}", figures)
    return Check(name, PASS, said, figures)
