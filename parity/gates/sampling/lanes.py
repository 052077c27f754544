"""Sampling in the lanes of a batch: each sequence is decided by its own numbers under its own settings.

All lanes sample at once, beside others that sample otherwise; every decision is made once more from what its own lane
showed. Then again, in reverse order of the lanes, so that each sits where another with other settings sat before.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from parity.compare.report import NOT_JUDGED
from parity.compare.sampling.replay import Decision, decisions, tightened
from parity.compare.sampling.round import SampledRound
from parity.compare.vocabulary import DraftVocabulary
from parity.gates.context import GateContext
from parity.gates.gate import Check
from parity.gates.sampling.rounds import Play, refuse_own_numbers, sampled_together, table
from parity.gates.sampling.verdict import judged
from parity.raised import raised_text, refuses
from parity.seam import Batched, Sampling

NAME = "replay, in lanes"
LANES = 3
"""Of a device that has as many as it is asked for: one for each of the settings."""
STREAM = 3
"""Of the seed: numbers that no other check draws."""


def in_lanes(context: GateContext, settings: Sequence[Sampling], vocabulary: DraftVocabulary, budget: int) -> Check:
    """A sequence in every lane, these settings one after the other, each with numbers of its own."""
    try:
        device = _with_lanes(context)
        refuse_own_numbers(device)
    except Exception as error:
        if not refuses(error):
            raise
        return Check(NAME, NOT_JUDGED, raised_text(error))
    says = device.describe()
    if says.lanes < 2 or not says.samples:
        lacks = "has one lane" if says.lanes < 2 else "does not sample in lanes (`SamplesInLanes`)"
        return Check(NAME, NOT_JUDGED, f"the device {lacks}")
    lanes, case = range(says.lanes), context.golden.manifest.case
    prompts = [lane % len(case.prompts) for lane in lanes]
    plays = [
        Play(settings[lane % len(settings)], prompt, case.prompts[prompt].ids, budget, _numbers(context, lane, budget))
        for lane, prompt in enumerate(prompts)
    ]
    first = sampled_together(device, plays, lanes)
    made = _decided(plays, first, vocabulary)
    closer = [_closer(play, own) for play, own in zip(plays, made, strict=True)]
    again = _decided(closer, sampled_together(device, closer, lanes[::-1]), vocabulary)
    return judged(NAME, list(chain(*first)), list(chain(*made)), list(chain(*again)), context.seed)


def _with_lanes(context: GateContext) -> Batched:
    named = context.device()
    device: Batched = named if isinstance(named, Batched) else context.device(lanes=LANES)  # type: ignore[assignment]
    return device


def _numbers(context: GateContext, lane: int, budget: int) -> np.ndarray:
    return table((context.seed, STREAM, lane), budget, context.golden.manifest.case.k)


def _closer(play: Play, made: Sequence[Decision]) -> Play:
    return Play(play.settings, play.prompt, play.ids, play.budget, tightened(made, play.uniforms))


def _decided(
    plays: Sequence[Play], played: Sequence[Sequence[SampledRound]], vocabulary: DraftVocabulary
) -> list[list[Decision]]:
    """Each sequence's decisions, under its own settings."""
    return [
        [one for seen in rounds for one in decisions(seen, play.settings, vocabulary)]
        for play, rounds in zip(plays, played, strict=True)
    ]
