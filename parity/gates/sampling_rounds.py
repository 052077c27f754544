"""Rounds that a device samples by numbers it is given, with the logits that it shows of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from parity.compare.vocabulary import DraftVocabulary
from parity.decode import TargetPassTap, accepted, ended
from parity.drive import untapped
from parity.errors import Inconclusive, NotShown
from parity.families import MODEL, family_of
from parity.gates.sampling_oracle import processed
from parity.seam import DRAWS, Device, Samples, Sampling
from parity.shown import View, stages_of
from parity.stages import DRAFTER_LOGITS, TARGET_LOGITS, VERIFY_LOGITS


@dataclass(frozen=True)
class SampledRound:
    """A round and what decided it; round 0 is the prefill, with one row and no drafts.

    Args:
        drafts: n ids.
        tokens: n+1 ids, what `verify` returned.
        draft_logits: [n, VD]; None of a drafter without.
        logits: [n+1, V].
        uniforms: [4, K+1].
        emitted: what `commit` returned, and what it should have; nothing of the prefill.
    """

    prompt: int
    round: int
    drafts: np.ndarray
    tokens: np.ndarray
    draft_logits: np.ndarray | None
    logits: np.ndarray
    uniforms: np.ndarray
    emitted: tuple[Sequence[int], Sequence[int]] = ((), ())

    def uniform(self, what: str, row: int) -> float:
        """The number for one decision."""
        return float(self.uniforms[DRAWS.index(what), row])

    def p(self, settings: Sampling, slack: float = 0.0) -> np.ndarray:
        """The target's distribution [n+1, V]."""
        return processed(self.logits, settings, slack)

    def q(self, settings: Sampling, vocabulary: DraftVocabulary, slack: float = 0.0) -> np.ndarray:
        """What the drafts were to be drawn from, over the target's vocabulary [n, V]."""
        q = np.zeros((len(self.drafts), self.logits.shape[1]))
        if self.draft_logits is None:
            q[np.arange(len(q)), self.drafts] = 1
        else:
            q[:, vocabulary.tokens] = processed(self.draft_logits, settings, slack)
        return q

    @property
    def kept(self) -> int:
        """How many drafts were accepted."""
        return int(np.cumprod(self.tokens[:-1] == self.drafts).sum())


def table(seed: Sequence[int], budget: int, k: int) -> np.ndarray:
    """Numbers for as many rounds as a budget can have: float32 [budget + 1, 4, K + 1]."""
    numbers: np.ndarray = np.random.default_rng(seed).random((budget + 1, len(DRAWS), k + 1), np.float32)
    return numbers


def sampled(
    device: Device, settings: Sampling, prompt: int, ids: Sequence[int], budget: int, uniforms: np.ndarray
) -> Iterator[SampledRound]:
    """Speculate on one prompt until EOS or the budget; the device is greedy again behind it.

    Raises:
        NotShown: the device declares to show no logits of every row.
        Inconclusive: it hands over other rows than it declares.
    """
    _refuse_hidden(device)
    sampler = cast(Samples, device)
    sampler.sample(settings, uniforms)
    try:
        yield from _rounds(device, prompt, ids, budget, uniforms)
    finally:
        sampler.sample(None, uniforms)


def _rounds(
    device: Device, prompt: int, ids: Sequence[int], budget: int, uniforms: np.ndarray
) -> Iterator[SampledRound]:
    says, none = device.describe(), np.empty(0, np.int64)
    has_logits = MODEL in family_of(says.family or "p-eagle").has
    tap = _tap()
    emitted = [int(device.prefill(ids, budget, tap))]
    logits = _seen(tap, TARGET_LOGITS)[-1:]
    yield SampledRound(prompt, 0, none, np.array(emitted), None, logits, uniforms[0])
    round_ = 0
    while not ended(emitted, says.eos, budget):
        round_, tap = round_ + 1, _tap()
        drafts = np.asarray(device.draft(tap), np.int64)
        draft_logits = _seen(tap, DRAFTER_LOGITS, len(drafts)) if has_logits and len(drafts) else None
        tap = _tap()
        tokens = np.asarray(device.verify(drafts, tap), np.int64)
        logits = _seen(tap, VERIFY_LOGITS, len(drafts) + 1)
        due = accepted(drafts.tolist(), tokens.tolist(), says.eos, budget - len(emitted))
        fresh = [int(token) for token in device.commit(drafts, tokens, untapped)]
        yield SampledRound(prompt, round_, drafts, tokens, draft_logits, logits, uniforms[round_], (fresh, due))
        if not fresh or len(tokens) != len(drafts) + 1:
            raise Inconclusive(f"round {round_}: {len(drafts)} drafts, {len(tokens)} tokens, {len(fresh)} emitted")
        emitted += fresh


def _tap() -> TargetPassTap:
    return TargetPassTap(keep=lambda stage: stage in (TARGET_LOGITS, VERIFY_LOGITS, DRAFTER_LOGITS))


def _seen(tap: TargetPassTap, stage: str, rows: int | None = None) -> np.ndarray:
    logits = tap.seen.get(stage)
    if logits is None or not len(logits) or rows not in (None, len(logits)):
        seen = "none" if logits is None else f"{len(logits)} rows"
        raise Inconclusive(f"the device hands over {seen} of {stage}" + (f", {rows} are due" if rows else ""))
    return logits


def _refuse_hidden(device: Device) -> None:
    says = device.describe()
    view = View(says.shown, stages_of(says))
    for stage, rows in ((TARGET_LOGITS, "last"), (VERIFY_LOGITS, "all"), (DRAFTER_LOGITS, "all")):
        if stage in view.declared and view.rows(stage, int(stage != TARGET_LOGITS)) not in ("all", rows):
            raise NotShown(f"the device does not show every row of {stage}: nothing says what is drawn from")
