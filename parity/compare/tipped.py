"""How far the target's scores move where close choices of experts, which a run does not show, all fall the other way.

Where nothing says which router ties a run tipped, its tokens may stand behind other experts than the golden's. A token
that the reference scores lower than those could make of it is wrong all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from parity.compare.choices import regrets
from parity.compare.hidden_experts import TOKENS, HiddenExperts, Spot, spots
from parity.compare.rows import StageRows, stage_rows
from parity.compare.scores import NOISE_SIGMAS, row_noise
from parity.golden.views import DumpView, TrustedGolden

Moved = Mapping[str, Mapping[Spot, float]]
"""By stage of scores, the RMS change of each row's."""


def moved(hidden: HiddenExperts, prompts: Sequence[int]) -> Moved:
    """How far tipping every close choice of these prompts moves the rows of the target's scores.

    A flip changes each score of a row in its own way, so that some of the flips move it about as far as all of them do
    at the most: half as far again at the worst of 12 random subsets of 154 in two prompts of the tiny pair.

    Raises:
        ParityError: the reference cannot run again.
    """
    largest: dict[str, dict[Spot, float]] = {scores: {} for scores in TOKENS.values()}
    for again in hidden.tipped(prompts):
        for scores, known in largest.items():
            for spot, change in _changes(hidden.truth, again, scores):
                known[spot] = max(change, known.get(spot, 0.0))
    return largest


def beyond(rows: StageRows, scores: StageRows | None, change: Moved) -> np.ndarray:
    """Which tokens [R] the golden scores lower than noise and close choices of experts explain together.

    None of rows whose scores are not known, nor of what is no token of the target.
    """
    none = np.zeros(len(rows.golden), dtype=bool)
    known = change.get(TOKENS.get(rows.named.name, ""), {})
    if not known or scores is None or len(scores.golden) != len(none) or rows.device.dtype.kind not in "iu":
        return none
    legal = (rows.device >= 0) & (rows.device < scores.golden.shape[1])
    regret, _ = regrets(scores.golden, rows.golden, np.where(legal, rows.device, 0))
    change_of = np.array([known.get(spot, np.inf) for spot in spots(rows)])
    return np.asarray(~legal | (regret > NOISE_SIGMAS * np.hypot(row_noise(scores), change_of)))


def _changes(truth: TrustedGolden, again: DumpView, name: str) -> Iterator[tuple[Spot, float]]:
    """The RMS change of each row of scores."""
    rows = stage_rows(truth, again, truth.declared[name], device="float32", mode="chained")
    if rows is not None:
        apart = rows.device.astype(np.float64) - rows.golden
        yield from zip(spots(rows), np.sqrt((apart**2).mean(axis=1)).tolist(), strict=True)
