"""The scores that a choice is made from: experts are the top k of the router logits, tokens the argmax of logits,
retrieved pages the best of the page scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from parity.compare.rows import NOISY, StageRows, row_floors, same_rows, stage_rows
from parity.compare.vocabulary import draft_vocabulary
from parity.golden.ranks import SUM
from parity.golden.views import DumpView, TrustedGolden
from parity.metrics import measure
from parity.stages import DRAFT_TOKENS, Named

SCORES = {
    "target.tokens": "target.logits",
    "verify.tokens": "verify.logits",
    "drafter.draft_tokens": "drafter.logits",
    "experts": "router_logits",
    "pages": "page_scores",
}
"""The stage that a choice is made from."""

NOISE_SIGMAS = 7.0
"""Regret that rounding explains, in multiples of the row's own noise (RMS of the bfloat16 reference's
error over that row's scores). The difference of two scores has sqrt(2) times that error; seven covers five
standard deviations of it. A golden has 50,000 such rows, so five (3.5 deviations) called a clean device wrong
once in 200 runs against its own references and once in 23 against vLLM's quieter floor: docs/calibration.md."""

ROUNDINGS = 2
"""Scores recorded as the ranks' partial sums: parity adds them and so does the device, each rounds once, and a
difference of two scores may part by this many roundings of the largest for each rank."""


def scores_of(stage: str) -> str | None:
    """The full name of the scores behind a stage; None where it is no choice."""
    prefix, last = stage.rsplit(".", 1)
    if stage in SCORES:
        return SCORES[stage]
    return f"{prefix}.{SCORES[last]}" if last in SCORES else None


def _scored(golden: TrustedGolden, choice: str) -> Named:
    """The stage of the scores behind a stage of choices."""
    scores = scores_of(choice)
    if scores is None:
        raise ValueError(f"{choice} is no choice: nothing scores it")
    return golden.declared[scores]


def row_noise(scores: StageRows) -> np.ndarray:
    """RMS noise of each row's scores [R].

    One row's choice is judged, so its floor is backed like a worst row's: by the noisy tenth's, not the median.
    """
    if scores.noise is not None:
        return scores.noise
    floor = measure(scores.golden, scores.noise_floor)
    everywhere = np.zeros(len(scores.golden), dtype=bool)
    rms = np.sqrt(floor.rows.golden_sq / scores.golden.shape[1])
    return np.asarray(row_floors(floor.rows.rel_l2, everywhere, NOISY) * rms)


def contradicting(golden: TrustedGolden, run: DumpView, rows: StageRows) -> np.ndarray:
    """Which rows [R] of a stage of choices are not the best of the scores that they were made from.

    The scores are those that the run recorded, or the golden's in the run's dtype where a local run forced them: a
    choice is made from what the tap returned. Equal scores may be chosen in any order, so that a device which records
    in bfloat16 what it chose from in float32 contradicts nothing. Of two devices either one's choices count. Rows
    whose scores nobody recorded, or are not finite, contradict nothing here. Nor do choices that a counterfactual
    makes, whose rule is another one.
    """
    contradict = np.zeros(len(rows.golden), dtype=bool)
    named = _scored(golden, rows.named.name)
    for side in run.sides:
        if named.name not in side.manifest.stages or named.name not in golden.manifest.stages:
            continue
        scores, chosen = stage_rows(golden, side, named), stage_rows(golden, side, rows.named)
        if scores is None or chosen is None or chosen.device.dtype.kind not in "iu":
            continue
        in_chosen, in_scores = shared(chosen, scores)
        wrong = np.zeros(len(chosen.golden), dtype=bool)
        wrong[in_chosen] = _beaten(side, named, chosen, scores, in_chosen, in_scores)
        if golden.imagined:
            wrong[in_chosen] &= ~_as_imagined(side, named, chosen, scores, in_chosen, in_scores)
        in_rows, in_chosen = shared(rows, chosen)
        contradict[in_rows] |= wrong[in_chosen]
    return contradict


def unchecked(golden: TrustedGolden, run: DumpView, rows: StageRows) -> np.ndarray:
    """Which rows [R] of a stage of choices their own scores say nothing of.

    Adding the ranks' partial sums may move them by all that noise explains.
    """
    hidden = np.zeros(len(rows.golden), dtype=bool)
    named = _scored(golden, rows.named.name)
    for side in run.sides:
        if {named.name} & set(side.manifest.stages) & set(golden.manifest.stages) and _summed(side, named) > 1:
            scores = stage_rows(golden, side, named)
            if scores is not None:
                in_rows, in_scores = shared(rows, scores)
                slack = _slack(side, named, scores, scores.device.astype(np.float32))
                hidden[in_rows] |= (slack >= NOISE_SIGMAS * row_noise(scores))[in_scores]
    return hidden


def _beaten(
    side: DumpView, named: Named, chosen: StageRows, scores: StageRows, in_chosen: np.ndarray, in_scores: np.ndarray
) -> np.ndarray:
    """Of the rows that both stages have (their numbers in each), those in which a score left is above one taken."""
    seen = scores.device[in_scores]
    case = side.manifest.case
    forced = case.mode == "local" and named.stage.template in case.forced
    used = (scores.golden[in_scores].astype(seen.dtype) if forced else seen).astype(np.float32)
    ids = chosen.device[in_chosen].astype(np.int64).reshape(len(in_chosen), -1)
    slack = np.zeros(len(used)) if forced else _slack(side, named, scores, used)
    if chosen.named.name == DRAFT_TOKENS:
        taken = _drafted(ids, chosen, scores)
        least = np.where(taken, used, -np.inf).max(axis=1)
    else:
        taken = members(ids, used.shape[1])
        least = np.where(taken, used, np.inf).min(axis=1)
    left = np.where(taken, -np.inf, used).max(axis=1)
    return np.asarray(np.isfinite(used).all(axis=1) & taken.any(axis=1) & (least < left - slack))


def _as_imagined(
    side: DumpView, named: Named, chosen: StageRows, scores: StageRows, in_chosen: np.ndarray, in_scores: np.ndarray
) -> np.ndarray:
    """Of the rows that both stages have, those in which a counterfactual chooses the same against its own scores."""
    rows = replace(chosen, device=chosen.golden), replace(scores, device=scores.golden)
    same = same_rows(chosen.golden, chosen.device)[in_chosen]
    return np.asarray(same & _beaten(side, named, *rows, in_chosen, in_scores))


def _slack(side: DumpView, named: Named, scores: StageRows, used: np.ndarray) -> np.ndarray:
    """How far each row of recorded scores [R, X] may be from what the device chose from: 0 but for partial sums."""
    if (ranks := _summed(side, named)) == 1:
        return np.zeros(len(used))
    step = 2.0 ** -(8 if scores.device.dtype.itemsize == 2 else 24)
    return np.asarray(ROUNDINGS * ranks * step * np.abs(used).max(axis=1))


def _summed(side: DumpView, named: Named) -> int:
    """The most ranks that any tensor of a stage is the sum of."""
    recorded = (parts for place, parts in side.parts.items() if place[3] == named.name)
    return max((len(parts) for parts in recorded if parts[0].sharding == SUM), default=1)


def members(ids: np.ndarray, count: int) -> np.ndarray:
    """Ids [R, X] as a membership table [R, count]; a row with an id that is none is empty."""
    legal = np.asarray(((ids >= 0) & (ids < count)).all(axis=1))
    table = np.zeros((len(ids), count), dtype=bool)
    np.put_along_axis(table, np.where(legal[:, None], ids, 0), True, axis=1)
    return table & legal[:, None]


def _drafted(ids: np.ndarray, chosen: StageRows, scores: StageRows) -> np.ndarray:
    """The columns [R, VD] that a draft token may stand for: its own, or every one that is not known as another's."""
    chosen, scores = paired(chosen, scores)
    tokens = draft_vocabulary(chosen.source, scores, chosen).tokens
    own = np.asarray(tokens[None] == ids)
    return np.where(own.any(axis=1, keepdims=True), own, (tokens == -1)[None])


def paired(choices: StageRows, scores: StageRows) -> tuple[StageRows, StageRows]:
    """Choices and scores at the rows that both have: a device may show the last row of one and every row of another."""
    of_choices, of_scores = shared(choices, scores)
    if len(of_choices) == len(choices.golden) == len(scores.golden):
        return choices, scores
    return choices.take(of_choices), scores.take(of_scores)


def shared(first: StageRows, second: StageRows) -> tuple[np.ndarray, np.ndarray]:
    """The numbers, in each, of the rows that both stages have, by prompt, round and position."""
    if np.array_equal(first.labels, second.labels):
        everything = np.arange(len(first.labels))
        return everything, everything
    numbers = {tuple(label): number for number, label in enumerate(second.labels.tolist())}
    labels = enumerate(map(tuple, first.labels.tolist()))
    pairs = [(number, numbers[label]) for number, label in labels if label in numbers]
    in_first, in_second = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return in_first, in_second
