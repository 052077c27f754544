"""What a serving engine does to a sequence beside decoding it: continuing from a cache equals starting fresh.

Each case is run twice on one device: fresh, and continued from what is in the caches. Compared are the rows that the
continued prefill runs over, the whole caches behind it, the rounds behind that, and where the text ends, by bits or by
the bound of `parity.gates.rollback.sameness.WithinNoise`: other numbers of rows in a pass are other sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

from parity.compare.report import NOT_JUDGED, PASS
from parity.gates.batch import LANES
from parity.gates.beside import Beside
from parity.gates.context import GateContext, NoiseFloors
from parity.gates.gate import Check
from parity.gates.lifecycle_cases import CHUNK, Lives
from parity.gates.rollback.sameness import WithinNoise
from parity.raised import raised_text, refuses
from parity.seam import Batched, Continuing, ContinuingInLanes, Saving, SavingInLanes
from parity.shown import stages_of

SEVERAL = "resumed after several tokens"
"""What a text's last round emitted no draft has fed again: one row is missing in the drafter's cache, or several."""

K_ROWS = "K + 1"
"""The cut that a pass of verify is as long as."""

NEIGHBOUR = 3
"""Times a sequence's budget: what those beside it have, so that they are there when it ends."""


def checks(context: GateContext) -> Iterator[Check]:
    """Every event that the device offers, at every cut; in float32 where it offers that."""
    device = context.device(context.sharpest)
    prompts = sorted((list(prompt.ids) for prompt in context.golden.manifest.case.prompts), key=len)
    *others, longest = prompts
    says = device.describe()
    within = WithinNoise(stages_of(says), says.precision, NoiseFloors(context.golden))
    lives = Lives(device, within, ids=longest, other=others[0] if others else longest[::-1])
    yield lives.check("the next prompt", Lives.after_another)
    if isinstance(device, Continuing):
        cuts = _cuts(context)
        yield lives.check("prefix hit", Lives.hit, _played(cuts.values(), longest), "{} rows cached")
        for what, cut in cuts.items():
            if cut >= len(longest):
                said = f"cut at {what} ({cut}): the prompt has {len(longest)} tokens"
                yield Check(f"prefix hit at {what}", NOT_JUDGED, f"not exercised: {said}")
        yield lives.check("resumed after a stop", Lives.resumed)
        yield lives.check(SEVERAL, Lives.resumed_behind_several, (prompts[::-1],))
        yield lives.check("after an abort", Lives.aborted, ("draft", "verify"), "behind {}")
    else:
        yield Check("prefix hit", NOT_JUDGED, "the device has no prefill_from (parity.seam.Continuing)")
    if isinstance(device, Saving):
        yield lives.check("off-loaded and restored", Lives.restored, (0, 1), "behind round {}")
        yield lives.check(
            "off-loaded and restored as the second of two", Lives.restored_second, (1,), "behind round {}"
        )
    else:
        yield Check("off-loaded and restored", NOT_JUDGED, "the device has no save and restore (parity.seam.Saving)")
    yield _in_chunks(context, lives, says.precision)
    yield from _in_lanes(context, lives)


def _in_lanes(context: GateContext, lives: Lives) -> Iterator[Check]:
    """What continues in one lane, while each of its neighbours does as much of a sequence of its own."""
    try:
        named = context.device(context.sharpest)
        device = named if isinstance(named, Batched) else context.device(context.sharpest, lanes=LANES)
    except Exception as error:
        if not refuses(error):
            raise
        yield Check("in lanes", NOT_JUDGED, f"the device runs one sequence at a time: {raised_text(error)}")
        return
    if not isinstance(device, Batched) or device.describe().lanes < 2:
        yield Check("in lanes", NOT_JUDGED, "the device has one lane")
        return
    others = [list(prompt.ids) for prompt in context.golden.manifest.case.prompts if list(prompt.ids) != lives.ids]
    beside = Beside(device, 1, others or [lives.other], NEIGHBOUR * lives.budget)
    mine = replace(lives, device=beside)
    if isinstance(device, ContinuingInLanes):
        cuts = _cuts(context)
        few = cuts.values() if device is named else [cuts[K_ROWS]]  # the others are asked of a sequence alone
        yield _beside(mine, "prefix hit", Lives.hit, _played(few, lives.ids), "{} rows cached")
        yield _beside(mine, "resumed after a stop", Lives.resumed)
        yield _beside(mine, "after an abort", Lives.aborted, ("verify",), "behind {}")
    else:
        said = "the device has no prefill_from_batch (parity.seam.ContinuingInLanes)"
        yield Check("prefix hit, in lanes", NOT_JUDGED, said)
    if isinstance(device, SavingInLanes):
        yield _beside(mine, "off-loaded and restored", Lives.restored, (1,), "behind round {}")
    else:
        said = "the device has no save_batch and restore_batch (parity.seam.SavingInLanes)"
        yield Check("off-loaded and restored, in lanes", NOT_JUDGED, said)


def _cuts(context: GateContext) -> dict[str, int]:
    """Rows that are cached, by what they are: none, one, K + 1, a chunk, the window. The prompt may have fewer."""
    model, k = context.golden.manifest.model, context.golden.manifest.case.k
    window = model.target.constants.get("sliding_window")
    cuts = {"none": 0, "one": 1, K_ROWS: k + 1, "a chunk": CHUNK}
    return cuts | ({"the window": window} if isinstance(window, int) and window > 0 else {})


def _played(cuts: Iterable[int], ids: Sequence[int]) -> list[int]:
    """Those of the cuts that the prompt is long enough for, and the last one that there is."""
    return sorted({cut for cut in cuts if cut < len(ids)} | {len(ids) - 1})


def _in_chunks(context: GateContext, lives: Lives, precision: str) -> Check:
    try:
        parts = context.device(precision, prefill_rows=CHUNK)
    except Exception as error:
        if not refuses(error):
            raise
        return Check("prefill in chunks", NOT_JUDGED, f"the device prefills at once: {raised_text(error)}")
    return lives.check("prefill in chunks", Lives.on_another, (parts,), f"of {CHUNK} rows")


def _beside(lives: Lives, name: str, *asked: Any) -> Check:
    """A check of one lane, of which at least one continuation has to have been beside somebody."""
    beside = cast(Beside, lives.device)
    beside.continued = beside.beside = 0
    check = lives.check(f"{name}, in lanes", *asked)
    if check.verdict == PASS and not beside.beside:
        return Check(check.name, NOT_JUDGED, "not exercised: the texts of all neighbours had ended before")
    said = f"{check.evidence}; {beside.beside} of {beside.continued} continuations beside sequences in mid-generation"
    return replace(check, evidence=said)
