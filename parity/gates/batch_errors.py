"""A tap that raises in one lane: a verb for several of them is done for all or for none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parity.compare.report import FAIL, NOT_JUDGED, PASS
from parity.gates.gate import Check
from parity.gates.rollback.baseline import InjectedError
from parity.raised import raised_text
from parity.rounds import untapped
from parity.seam import Tap

NAME = "an error in one lane"


class _NotAgain(Exception):
    """A verb that cannot be called again."""

    def __init__(self, verb: str, error: Exception) -> None:
        super().__init__(verb)
        self.error = error


class _Raising:
    """Raises at the first stage."""

    raised = False

    def __call__(self, stage: str, value: np.ndarray) -> np.ndarray:
        self.raised = True
        raise InjectedError(stage)


def error_check(device: Any, prompts: Sequence[Sequence[int]], budget: int) -> Check:
    """One round of these prompts, undisturbed, and with every verb called again behind an error in its last lane.

    Args:
        device: a `parity.seam.Batched`.
    """
    if not device.describe().transactional:
        return Check(NAME, NOT_JUDGED, "a verb that raises does not leave the state it found, the device says")
    calm, _ = _round(device, prompts, budget, disturbed=False)
    try:
        again, raised = _round(device, prompts, budget, disturbed=True)
    except _NotAgain as broken:
        return Check(
            NAME, FAIL, f"{broken}, called again behind an error in its last lane, {raised_text(broken.error)}"
        )
    if not raised:
        return Check(NAME, NOT_JUDGED, "no verb hands anything to the tap of its last lane")
    for verb, before, now in zip(calm, calm.values(), again.values(), strict=True):
        wrong = [lane for lane, pair in enumerate(zip(before, now, strict=True)) if not np.array_equal(*pair)]
        if wrong:
            said = f"{verb}, called again behind an error in its last lane, gives other tokens in lane {wrong[0]}"
            return Check(NAME, FAIL, said)
    return Check(NAME, PASS, f"{', '.join(raised)}: called again, each gives what it gives undisturbed")


def _round(
    device: Any, prompts: Sequence[Sequence[int]], budget: int, disturbed: bool
) -> tuple[dict[str, list[Any]], list[str]]:
    """What each verb returned, and those in which a tap raised."""
    lanes, raised = list(range(len(prompts))), list[str]()

    def called(verb: str, call: Callable[[list[Tap]], Sequence[Any]]) -> list[Any]:
        bad = _Raising()
        if disturbed:
            try:
                return list(call([*[untapped] * (len(lanes) - 1), bad]))
            except Exception:
                if not bad.raised:
                    raise
                raised.append(verb)
        try:
            return list(call([untapped] * len(lanes)))
        except Exception as error:
            if verb not in raised:
                raise
            raise _NotAgain(verb, error) from error

    found: dict[str, list[Any]] = {}
    found["prefill"] = called("prefill", lambda taps: device.prefill_batch(lanes, prompts, [budget] * len(lanes), taps))
    found["draft"] = called("draft", lambda taps: device.draft_batch(lanes, taps))
    found["verify"] = called("verify", lambda taps: device.verify_batch(lanes, found["draft"], taps))
    found["commit"] = called("commit", lambda taps: device.commit_batch(lanes, found["draft"], found["verify"], taps))
    return found, raised
