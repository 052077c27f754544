"""Which token entered the pass of each row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parity.compare.rows import Clock, StageRows
from parity.golden.views import DumpView
from parity.stages import DRAFT_TOKENS, DRAFTER_INPUT_IDS


def entered_tokens(golden: DumpView, rows: StageRows) -> np.ndarray:
    """The ids [R] that entered at the rows' positions, int64; -1 where the golden does not say.

    A target's rows hold the sequence, and behind its last token the round's drafts; a cache's the sequence alone.
    """
    tokens = np.full(len(rows.prompt), -1)
    for prompt, round_ in np.unique(np.stack([rows.prompt, rows.round], axis=1), axis=0).tolist():
        case = golden.manifest.case.prompts[prompt]
        clock = Clock.of(case, golden.manifest)
        if "drafter" in rows.named.name:
            first, ids = _drafter_ids(golden, clock, prompt, round_)
        else:
            first, ids = 0, [*case.ids, *case.generated.emitted]
            if round_ and not rows.named.stage.cache:
                ids = [*ids[: clock.length(round_ - 1) + 1], *_stored(golden, prompt, round_, DRAFT_TOKENS)]
        own = (rows.prompt == prompt) & (rows.round == round_)
        places = rows.position[own] - first
        there = (places >= 0) & (places < len(ids))
        tokens[own] = np.where(there, np.array([*ids, -1])[np.where(there, places, -1)], -1)
    return tokens


def own_tokens(golden: DumpView, rows: StageRows) -> np.ndarray:
    """The ids [R] at a drafter's committed rows' own positions, int64: what enters there is the token behind; -1 of
    masked rows, and of other models, whose rows' own token is what enters."""
    tokens = np.full(len(rows.prompt), -1)
    if rows.named.stage.side != "drafter":
        return tokens
    for prompt in np.unique(rows.prompt).tolist():
        case = golden.manifest.case.prompts[prompt]
        clock, ids = Clock.of(case, golden.manifest), np.array([*case.ids, *case.generated.emitted, -1])
        own = rows.prompt == prompt
        lengths = np.array([clock.length(round_) for round_ in range(clock.rounds)])
        known = lengths[np.maximum(rows.round[own] - 1, 0)]
        there = (rows.position[own] >= 0) & (rows.position[own] < known)
        tokens[own] = ids[np.where(there, rows.position[own], -1)]
    return tokens


def _drafter_ids(golden: DumpView, clock: Clock, prompt: int, round_: int) -> tuple[int, Sequence[int]]:
    """The position of a drafter pass's first row, and the ids of its rows."""
    return clock.first(DRAFTER_INPUT_IDS, round_, 0), _stored(golden, prompt, round_, DRAFTER_INPUT_IDS)


def _stored(golden: DumpView, prompt: int, round_: int, stage: str) -> Sequence[int]:
    """The numbers of an exact stage; none where the golden lacks them."""
    held = golden.contents("float32", prompt, round_, stage) if stage in golden.manifest.stages else None
    return [] if held is None else [int(one) for one in held.ravel()]
