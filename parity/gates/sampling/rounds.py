"""Rounds that a device samples by numbers it is given, with the logits that it shows of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from parity.batching import Script, VerbCall, perform, perform_together
from parity.compare.sampling.round import SampledRound
from parity.decode import TargetPassTap, accepted, ended
from parity.errors import Inconclusive, NotOffered, NotShown
from parity.families import MODEL, family_of
from parity.rounds import untapped
from parity.seam import DRAWS, Batched, Description, Device, Samples, SamplesInLanes, Sampling
from parity.shown import View, stages_of
from parity.stages import DRAFTER_LOGITS, TARGET_LOGITS, VERIFY_LOGITS


def table(seed: Sequence[int], budget: int, k: int) -> np.ndarray:
    """Numbers for as many rounds as a budget can have: float32 [budget + 1, 4, K + 1]."""
    numbers: np.ndarray = np.random.default_rng(seed).random((budget + 1, len(DRAWS), k + 1), np.float32)
    return numbers


@dataclass(frozen=True)
class Play:
    """One sequence to speculate on until EOS or the budget.

    Args:
        prompt: its number.
        ids: of the prompt.
        uniforms: [R, 4, n]; see `parity.seam.Samples`.
    """

    settings: Sampling
    prompt: int
    ids: Sequence[int]
    budget: int
    uniforms: np.ndarray


def sampled(device: Device, play: Play) -> list[SampledRound]:
    """The rounds of one sequence, in the last lane of several; the device is greedy again behind it.

    Raises:
        NotShown: the device declares to show no logits of every row.
        Inconclusive: it hands over other rows than it declares.
    """
    _refuse_hidden(device)
    sampler = cast(Samples, device)
    sampler.sample(play.settings, play.uniforms)
    try:
        return perform(device, _rounds(device.describe(), play))
    finally:
        sampler.sample(None, play.uniforms)


def sampled_together(device: Batched, plays: Sequence[Play], lanes: Sequence[int]) -> list[list[SampledRound]]:
    """The rounds of several sequences, each in the lane at its place; errors as `sampled`'s."""
    _refuse_hidden(device)
    sampler, tables = cast(SamplesInLanes, device), [play.uniforms for play in plays]
    sampler.sample_batch(lanes, [play.settings for play in plays], tables)
    try:
        scripts = [_rounds(device.describe(), play) for play in plays]
        found = dict(perform_together(device, enumerate(scripts), lanes))
    finally:
        sampler.sample_batch(lanes, [None] * len(lanes), tables)
    return [found[number] for number in range(len(plays))]


def _rounds(says: Description, play: Play) -> Script[list[SampledRound]]:
    """Prefill and rounds of a sequence, as the calls that they are; its end has the rounds."""
    has_logits, none = MODEL in family_of(says.family or "p-eagle").has, np.empty(0, np.int64)
    tap = _tap()
    emitted = [int((yield VerbCall("prefill", (play.ids, play.budget), tap)))]
    logits = _seen(tap, TARGET_LOGITS)[-1:]
    rounds = [SampledRound(play.prompt, 0, none, np.array(emitted), None, logits, play.uniforms[0])]
    while not ended(emitted, says.eos, play.budget):
        tap = _tap()
        drafts = np.asarray((yield VerbCall("draft", (), tap)), np.int64)
        draft_logits = _seen(tap, DRAFTER_LOGITS, len(drafts)) if has_logits and len(drafts) else None
        tap = _tap()
        tokens = np.asarray((yield VerbCall("verify", (drafts,), tap)), np.int64)
        logits = _seen(tap, VERIFY_LOGITS, len(drafts) + 1)
        due = accepted(drafts.tolist(), tokens.tolist(), says.eos, play.budget - len(emitted))
        fresh = [int(token) for token in (yield VerbCall("commit", (drafts, tokens), untapped))]
        at, numbers = len(rounds), play.uniforms[len(rounds)]
        rounds.append(SampledRound(play.prompt, at, drafts, tokens, draft_logits, logits, numbers, (fresh, due)))
        if not fresh or len(tokens) != len(drafts) + 1:
            raise Inconclusive(f"round {at}: {len(drafts)} drafts, {len(tokens)} tokens, {len(fresh)} emitted")
        emitted += fresh
    return rounds


def _tap() -> TargetPassTap:
    return TargetPassTap(keep=lambda stage: stage in (TARGET_LOGITS, VERIFY_LOGITS, DRAFTER_LOGITS))


def _seen(tap: TargetPassTap, stage: str, rows: int | None = None) -> np.ndarray:
    logits = tap.seen.get(stage)
    if logits is None or not len(logits) or rows not in (None, len(logits)):
        seen = "none" if logits is None else f"{len(logits)} rows"
        raise Inconclusive(f"the device hands over {seen} of {stage}" + (f", {rows} are due" if rows else ""))
    return logits


def refuse_own_numbers(device: Device | Batched) -> None:
    """Raise what says that nothing can be replayed.

    Raises:
        NotOffered: the device draws by random numbers of its own.
    """
    if device.describe().own_numbers:
        raise NotOffered("the device draws by random numbers of its own (`Description.own_numbers`)")


def _refuse_hidden(device: Device | Batched) -> None:
    says = device.describe()
    view = View(says.shown, stages_of(says))
    for stage, rows in ((TARGET_LOGITS, "last"), (VERIFY_LOGITS, "all"), (DRAFTER_LOGITS, "all")):
        if stage in view.declared and view.rows(stage, int(stage != TARGET_LOGITS)) not in ("all", rows):
            raise NotShown(f"the device does not show every row of {stage}: nothing says what is drawn from")
