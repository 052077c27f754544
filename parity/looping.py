"""Driving a device whose host loop is one piece: it runs, and says where its rounds end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import SupportsIndex, TypeVar

import numpy as np

from parity import limits
from parity.errors import DeviceFailed, UsageError
from parity.golden.case import Generation
from parity.seam import Looping, Tap
from parity.stages import ACCEPT_EMITTED, ACCEPT_LENGTH, DRAFT_TOKENS, TARGET_TOKENS, VERIFY_TOKENS
from parity.trace import ForcingTrace

T = TypeVar("T")
Ids = Sequence[SupportsIndex]


def drive_loop(device: Looping, ids: Sequence[int], budget: int, trace: ForcingTrace) -> None:
    """Run one prompt to its end; what a round chose is handed to the trace where the loop has not done so.

    What comes behind the last round that is over belongs to none, and is dropped.
    """
    trace.begin(0)

    def on_round(drafts: list[int], emitted: list[int], tokens: list[int] | None) -> None:
        if trace.round == 0:
            trace.told(TARGET_TOKENS, emitted)
        else:
            trace.told(DRAFT_TOKENS, drafts)
            if tokens is not None:
                trace.told(VERIFY_TOKENS, tokens)
            trace.told(ACCEPT_LENGTH, [len(emitted)])
            trace.told(ACCEPT_EMITTED, emitted)
        trace.begin(trace.round + 1)

    _speculated(device, ids, budget, trace, on_round)
    trace.drop()


def generate_loop(device: Looping, ids: Sequence[int], budget: int, tap: Tap) -> Generation:
    """Let the loop speculate freely; what it emitted, round by round."""
    lengths: list[int] = []
    accepted: list[int] = []

    def on_round(drafts: list[int], emitted: list[int], tokens: list[int] | None) -> None:
        matching = np.cumprod([a == b for a, b in zip(emitted, drafts, strict=False)])
        lengths.append(len(emitted))
        accepted.append(int(matching.sum()))

    tokens, says = _speculated(device, ids, budget, tap, on_round), device.describe()
    if len(tokens) < budget and tokens[-1] not in says.eos:
        early = f"it ends after {len(tokens)} tokens of a budget of {budget}, and not by an end token"
        raise DeviceFailed(says.name, "speculate", early)
    return Generation(
        emitted=tuple(tokens),
        acceptance_length=tuple(lengths[1:]),
        accepted_drafts=tuple(accepted[1:]),
        finish="eos" if tokens[-1] in says.eos else "length",
    )


def _speculated(
    device: Looping,
    ids: Sequence[int],
    budget: int,
    tap: Tap,
    took: Callable[[list[int], list[int], list[int] | None], None],
) -> list[int]:
    """What the loop emitted; its rounds are told as they end.

    Raises:
        UsageError: the rounds are not those of one sequence.
    """
    said: list[int] = []
    name = device.describe().name

    def on_round(drafts: Ids, emitted: Ids, tokens: Ids | None = None) -> None:
        fresh = _integers(emitted)
        if not fresh or (not said and (len(drafts) or len(fresh) > 1)):
            raise UsageError(
                f"device {name} announces a round of {len(drafts)} drafts that emits {len(fresh)} tokens; the first "
                "one is the prefill, without drafts and with the first token, and every later one emits one at least"
            )
        said.extend(fresh)
        took(_integers(drafts), fresh, None if tokens is None else _integers(tokens))

    emitted = token_ids(device.speculate(ids, budget, tap, on_round))
    if emitted != said or not said:
        raise UsageError(
            f"device {name} emitted {len(emitted)} tokens, its rounds {len(said)}, and they are not the same"
        )
    return emitted


def _integers(values: Ids) -> list[int]:
    return [index(value) for value in values]


def token_ids(values: Ids) -> list[int]:
    """What a device emitted, as ids.

    Raises:
        TypeError: one is no integer.
        ValueError: one is no id of any vocabulary.
    """
    ids = _integers(values)
    for one in ids:
        if not 0 <= one < limits.TOKEN:
            raise ValueError(f"it emitted {one}, which is no token's id")
    return ids
