"""What a serving engine does to a sequence beside decoding it: continuing from a cache equals starting fresh.

Each case is run twice on one device: fresh, and continued from what is in the caches. Compared are the rows that the
continued prefill runs over, the whole caches behind it, the rounds behind that, and where the text ends, by bits or by
the bound of `parity.gates.rollback.sameness.WithinNoise`: other numbers of rows in a pass are other sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any, cast

import numpy as np

from parity.batching import perform
from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, PASS, Place
from parity.drive import free_rounds, untapped
from parity.errors import DeviceFailed, NotOffered, UsageError
from parity.gates.batch import LANES
from parity.gates.beside import Beside
from parity.gates.context import GateContext, NoiseFloors
from parity.gates.difference import Difference, DifferingRow
from parity.gates.gate import Check
from parity.gates.own_rounds import ended, free_trace, own_end, own_prefill, own_rounds
from parity.gates.rollback.sameness import WithinNoise
from parity.guard import raised_text, refuses
from parity.seam import Batched, Continuing, ContinuingInLanes, Device, Saving, SavingInLanes
from parity.shown import stages_of
from parity.stages import ACCEPT_LENGTH
from parity.trace import ForcingTrace, Tensors

ROUNDS = 2
"""Behind the prefill: a draft, and one that finds its rows in the caches."""

END = 2 * ROUNDS
"""The number of the round in which the text ends: behind all others."""

SEVERAL = "resumed after several tokens"
"""What a text's last round emitted no draft has fed again: one row is missing in the drafter's cache, or several."""

CHUNK = 16
"""Rows of a prefill that runs in parts."""

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


class _NotExercised(Exception):
    """The golden's prompts do not lead where the check has to look."""


Both = tuple[Tensors, Tensors]
"""Fresh and continued."""


@dataclass
class Lives:
    """One prompt on a device, by several ways.

    Attributes:
        ids: the prompt.
        other: a shorter one, for what has been before or comes between.
        by_token: whether texts end by an end token, or by their budget.
    """

    device: Device
    within: WithinNoise
    ids: list[int]
    other: list[int]
    by_token: bool = False

    @property
    def budget(self) -> int:
        """Tokens for the rounds, one more round, and for two that end the text."""
        return (ROUNDS + 1) * (self.device.describe().k + 1) + 3

    def fresh(self, device: Device | None = None, ids: Sequence[int] | None = None) -> Tensors:
        """Prefill and rounds."""
        return self._run(device or self.device, ids or self.ids)

    def continued(self, cached: int, ids: Sequence[int] | None = None) -> Tensors:
        """The same, the prefill from the caches, where `cached` rows of it are there."""
        return self._run(self.device, ids or self.ids, cached)

    def _run(self, device: Device, ids: Sequence[int], cached: int | None = None) -> Tensors:
        trace = free_trace(self.within.names)
        perform(device, own_prefill(trace, ids, self.budget, cached))
        return self._to_the_end(device, trace)

    def _to_the_end(self, device: Device, trace: ForcingTrace) -> Tensors:
        """The rounds that are compared, and behind them those to the end of the text."""
        says = device.describe()
        perform(device, own_rounds(trace, ROUNDS, says.eos))
        if not ended(trace, says.eos):
            plain = [token for token in (*self.ids, *range(len(says.eos) + 2)) if token not in says.eos]
            eos = says.eos[0] if self.by_token else None
            perform(device, own_end(trace, END, says.k, plain, self.budget, eos))
        return trace.tensors

    def after_another(self) -> Both:
        """Behind another prompt that was decoded to its end."""
        before = self.fresh()
        perform(self.device, free_rounds(self.device, self.other, self.budget))
        return before, self.fresh()

    def hit(self, cut: int) -> Both:
        """Behind a prompt that begins alike, of which rounds were decoded."""
        before = self.fresh()
        self.fresh(ids=[*self.ids[:cut], *self.other])
        return _behind(before, self.continued(cut), cut)

    def resumed(self) -> Both:
        """The text to its end, and another turn behind it."""
        return self._turn([*self.ids, *perform(self.device, free_rounds(self.device, self.ids, self.budget)).emitted])

    def resumed_behind_several(self, prompts: Sequence[list[int]]) -> Both:
        """The same where the text ends in a round of several tokens: the drafts are those that the target goes on with.

        Raises:
            _NotExercised: no prompt has such a round.
        """
        for ids in prompts:
            first, *coming = perform(self.device, free_rounds(self.device, ids, self.budget)).emitted
            if len(coming) < 2:
                continue
            self.device.prefill(ids, len(coming) + 1, untapped)
            drafts = np.array(coming[: len(self.device.draft(untapped))], np.int64)
            tokens = self.device.verify(drafts, untapped)
            emitted = [index(token) for token in self.device.commit(drafts, tokens, untapped)]
            if len(emitted) > 1:
                return self._turn([*ids, first, *emitted])
        raise _NotExercised(f"not exercised: behind none of {len(prompts)} prompts is a round of several tokens")

    def _turn(self, text: list[int]) -> Both:
        """Another turn behind a text that has just ended, the last token of which no pass has seen."""
        turn = [*text, *self.other[:CHUNK]]
        after = self.continued(len(text) - 1, turn)
        return _behind(self.fresh(ids=turn), after, len(text) - 1)

    def aborted(self, verb: str) -> Both:
        """A request that goes away in mid-round; its prompt comes again with another end."""
        turn = [*self.ids, *self.other[:CHUNK]]
        before = self.fresh(ids=turn)
        self.device.prefill(self.ids, self.budget, untapped)
        drafts = self.device.draft(untapped)
        if verb == "verify":
            self.device.verify(drafts, untapped)
        return _behind(before, self.continued(len(self.ids), turn), len(self.ids))

    def restored(self, rounds: int) -> Both:
        """Taken off behind some rounds, another prompt in its place, and put back."""
        if not isinstance(self.device, Saving):
            raise NotOffered("no save and restore")
        tensors: list[Tensors] = []
        for between in (False, True):
            trace, eos = free_trace(self.within.names), self.device.describe().eos
            perform(self.device, own_prefill(trace, self.ids, self.budget))
            perform(self.device, own_rounds(trace, rounds, eos))
            if between:
                self.device.save("parity")
                perform(self.device, free_rounds(self.device, self.other, self.budget))
                self.device.restore("parity")
            tensors.append(self._to_the_end(self.device, trace))
        return tensors[0], tensors[1]

    def on_another(self, device: Device) -> Both:
        """The same on another device."""
        return self.fresh(), self.fresh(device)

    def check(self, name: str, run: Callable[..., Both], values: Sequence[Any] = (), says: str = "") -> Check:
        """Every case compared, the last one also to an end token; the first row beyond its bound, or how far rows are.

        Args:
            run: of `Lives`; takes one of `values`, or nothing where there are none.
            says: a value in words.
        """
        arguments: list[tuple[Any, ...]] = [(value,) for value in values] or [()]
        cases, found = [says.format(*one) for one in arguments], Difference[str](self.within)
        lives = [(self, case, given) for case, given in zip(cases, arguments, strict=True)]
        if self.device.describe().eos:
            by_token = replace(self, by_token=True)
            lives.append((by_token, f"{cases[-1]}, to an end token".lstrip(", "), arguments[-1]))
        ends = False
        for life, case, given in lives:
            try:
                before, now = run(life, *given)
                found.add(before, now, case)
                ends |= (END, ACCEPT_LENGTH) in before
            except _NotExercised as error:
                return Check(name, NOT_JUDGED, str(error))
            except (UsageError, DeviceFailed) as error:
                return Check(name, INCONCLUSIVE, f"{case}: the device raises: {raised_text(error)}", {"case": case})
            if found.first is not None:
                return _failed(name, found.first, self.within)
        return _passed(name, found, cases, ends)


def _failed(name: str, at: DifferingRow[str], within: WithinNoise) -> Check:
    if at.round == END:
        said = f"{at.where}: " if at.where else ""
        said += f"where the text ends, {at.stage} is not what it is fresh"
        return Check(name, FAIL, said, {"case": at.where}, Place(at.stage, None, 0, at.round, at.row))
    far = "another value" if at.apart == float("inf") else within.said(at.stage, at.apart)
    said = f"{at.where}: {at.stage} is not what it is fresh: {far}" if at.where else f"{at.stage} differs: {far}"
    return Check(name, FAIL, said, {"case": at.where}, Place(at.stage, None, 0, at.round, at.row))


def _passed(name: str, found: Difference[str], cases: Sequence[str], ends: bool) -> Check:
    if not found.tensors:
        return Check(name, INCONCLUSIVE, "no tensor is shown")
    figures = {"tensors": found.tensors, "moved": found.moved, "worst": found.worst, "cases": cases}
    of = f" in {len(cases)} cases ({', '.join(cases)})" if len(cases) > 1 else ""
    of += "" if ends else "; where texts end is not exercised: each ends before"
    if found.furthest is None:
        return Check(name, PASS, f"the same bits in all {found.tensors} tensors{of}", figures)
    at = found.furthest
    most = f"at most {found.within.said(at.stage, at.apart)} in {at.stage}" if at.apart else "as ties and noise explain"
    return Check(name, PASS, f"{found.moved} of {found.tensors} tensors have other bits{of}, {most}", figures)


def _behind(fresh: Tensors, continued: Tensors, cached: int) -> Both:
    """Of the fresh prefill the rows that the other runs over: all behind those cached, at least."""
    for (round_, stage), value in fresh.items():
        rows = len(continued.get((round_, stage), value))
        if round_ == 0 and len(value) - cached <= rows < len(value):
            fresh = fresh | {(round_, stage): value[len(value) - rows :]}
    return fresh, continued
