"""What a serving engine does to a sequence beside decoding it: continuing from a cache equals starting fresh.

Each case is run twice on one device: fresh, and continued from what is in the caches. Compared are the rows that the
continued prefill runs over, the whole caches behind it, and the rounds behind that, by bits or by the bound of
`parity.gates.rollback.sameness.WithinNoise`: other numbers of rows in a pass are other sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.batching import perform
from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, PASS, Place
from parity.drive import free_rounds, untapped
from parity.errors import DeviceFailed, NotOffered, UsageError
from parity.gates.context import GateContext, NoiseFloors
from parity.gates.gate import Check
from parity.gates.rollback.sameness import WithinNoise, changed_row
from parity.guard import raised_text
from parity.seam import Continuing, Device, Saving
from parity.shown import stages_of
from parity.trace import Tensors, Trace

ROUNDS = 2
"""Behind the prefill: a draft, and one that finds its rows in the caches."""

CHUNK, EXACT = 16, "float32"
"""Rows of a prefill that runs in parts; the precision in which what is read wrongly is far beyond rounding."""


def checks(context: GateContext) -> Iterator[Check]:
    """Every event that the device offers, at every cut; in float32 where it offers that."""
    device = _device(context)
    *others, longest = sorted((list(prompt.ids) for prompt in context.golden.manifest.case.prompts), key=len)
    says = device.describe()
    within = WithinNoise(stages_of(says), says.precision, NoiseFloors(context.golden))
    lives = Lives(device, within, ids=longest, other=others[0] if others else longest[::-1])
    yield lives.check("the next prompt", lives.after_another)
    if isinstance(device, Continuing):
        yield lives.check("prefix hit", lives.hit, _cuts(context, len(lives.ids)), "{} rows cached")
        yield lives.check("resumed after a stop", lives.resumed)
        yield lives.check("after an abort", lives.aborted, ("draft", "verify"), "behind {}")
    else:
        yield Check("prefix hit", NOT_JUDGED, "the device has no prefill_from (parity.seam.Continuing)")
    if isinstance(device, Saving):
        yield lives.check("off-loaded and restored", lives.restored, (0, 1), "behind round {}")
    else:
        yield Check("off-loaded and restored", NOT_JUDGED, "the device has no save and restore (parity.seam.Saving)")
    yield _in_chunks(context, lives, says.precision)


def _device(context: GateContext) -> Device:
    try:
        return context.device(EXACT)
    except NotOffered:
        return context.device()


def _cuts(context: GateContext, size: int) -> list[int]:
    """Rows that are cached: none, one, a chunk, the window, K + 1, all but one; as far as the prompt has them."""
    model, k = context.golden.manifest.model, context.golden.manifest.case.k
    window = model.target.constants.get("sliding_window")
    cuts = {0, 1, CHUNK, k + 1, size - 1, *([window] if isinstance(window, int) else [])}
    return sorted(cut for cut in cuts if 0 <= cut < size)


def _in_chunks(context: GateContext, lives: Lives, precision: str) -> Check:
    try:
        parts = context.device(precision, prefill_rows=CHUNK)
    except NotOffered as error:
        return Check("prefill in chunks", NOT_JUDGED, f"the device prefills at once: {error}")
    return lives.check("prefill in chunks", lives.on_another, (parts,), f"of {CHUNK} rows")


Both = tuple[Tensors, Tensors]
"""Fresh and continued."""


@dataclass
class Lives:
    """One prompt on a device, by several ways.

    Attributes:
        ids: the prompt.
        other: a shorter one, for what has been before or comes between.
    """

    device: Device
    within: WithinNoise
    ids: list[int]
    other: list[int]

    @property
    def budget(self) -> int:
        """Tokens for the rounds, and one more."""
        return (ROUNDS + 1) * (self.device.describe().k + 1)

    def fresh(
        self, device: Device | None = None, ids: Sequence[int] | None = None, cached: int | None = None
    ) -> Tensors:
        """Prefill, from the caches where `cached` rows of it are there, and rounds."""
        device, ids, trace = device or self.device, ids or self.ids, Trace(self.within.names)
        trace.begin(0)
        if cached is None:
            device.prefill(ids, self.budget, trace)
        elif isinstance(device, Continuing):
            device.prefill_from(cached, ids, self.budget, trace)
        self._rounds(trace, device, ROUNDS)
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
        return before, self.fresh(cached=cut)

    def resumed(self) -> Both:
        """The text to its end, and another turn behind it."""
        text = [*self.ids, *perform(self.device, free_rounds(self.device, self.ids, self.budget)).emitted]
        turn = [*text, *self.other[:CHUNK]]
        after = self.fresh(ids=turn, cached=len(text) - 1)
        return self.fresh(ids=turn), after

    def aborted(self, verb: str) -> Both:
        """A request that goes away in mid-round; its prompt comes again with another end."""
        turn = [*self.ids, *self.other[:CHUNK]]
        before = self.fresh(ids=turn)
        self.device.prefill(self.ids, self.budget, untapped)
        drafts = self.device.draft(untapped)
        if verb == "verify":
            self.device.verify(drafts, untapped)
        return before, self.fresh(ids=turn, cached=len(self.ids))

    def restored(self, rounds: int) -> Both:
        """Taken off behind some rounds, another prompt in its place, and put back."""
        if not isinstance(self.device, Saving):
            raise NotOffered("no save and restore")
        tensors: list[Tensors] = []
        for between in (False, True):
            trace = Trace(self.within.names)
            trace.begin(0)
            self.device.prefill(self.ids, self.budget, trace)
            self._rounds(trace, self.device, rounds)
            if between:
                self.device.save("parity")
                perform(self.device, free_rounds(self.device, self.other, self.budget))
                self.device.restore("parity")
            self._rounds(trace, self.device, ROUNDS)
            tensors.append(trace.tensors)
        return tensors[0], tensors[1]

    def on_another(self, device: Device) -> Both:
        """The same on another device."""
        return self.fresh(), self.fresh(device)

    def check(self, name: str, run: Callable[..., Both], values: Sequence[Any] = (), says: str = "") -> Check:
        """Every case compared; the first row beyond its bound, or how far rows are from theirs.

        Args:
            run: takes one of `values`, or nothing where there are none.
            says: a value in words.
        """
        count, moved, worst, at = 0, 0, 0.0, ""
        arguments: list[tuple[Any, ...]] = [(value,) for value in values] or [()]
        cases = [says.format(*one) for one in arguments]
        for case, given in zip(cases, arguments, strict=True):
            try:
                fresh, continued = run(*given)
            except (UsageError, DeviceFailed) as error:
                return Check(name, INCONCLUSIVE, f"{case}: the device raises: {raised_text(error)}", {"case": case})
            for round_, stage, before, now in _pairs(fresh, continued):
                count += 1
                if changed_row(before[stage], now[stage]) is None:
                    continue
                apart = _apart(self.within, stage, before, now)
                row, moved = int(np.argmax(apart > 1.0)), moved + 1
                if (apart > 1.0).any():
                    far = "another value" if np.isinf(apart[row]) else self.within.said(stage, float(apart[row]))
                    said = f"{case}: {stage} is not what it is fresh: {far}" if case else f"{stage} differs: {far}"
                    return Check(name, FAIL, said, {"case": case}, Place(stage, None, 0, round_, row))
                if apart.max() > worst:
                    worst, at = float(apart.max()), stage
        if not count:
            return Check(name, INCONCLUSIVE, "no tensor is shown")
        figures = {"tensors": count, "moved": moved, "worst": worst, "cases": cases}
        of = f" in {len(cases)} cases ({', '.join(cases)})" if len(cases) > 1 else ""
        if not moved:
            return Check(name, PASS, f"the same bits in all {count} tensors{of}", figures)
        most = f"at most {self.within.said(at, worst)} in {at}" if at else "as ties and noise explain"
        return Check(name, PASS, f"{moved} of {count} tensors have other bits{of}, {most}", figures)

    def _rounds(self, trace: Trace, device: Device, count: int) -> None:
        """So many rounds, the device choosing; none behind its end."""
        eos = device.describe().eos
        for _ in range(count):
            trace.begin(trace.round + 1)
            drafts = device.draft(trace)
            emitted = device.commit(drafts, device.verify(drafts, trace), trace)
            if set(map(int, emitted)) & set(eos):
                return


Rows = dict[str, np.ndarray]


def _pairs(fresh: Tensors, continued: Tensors) -> Iterator[tuple[int, str, Rows, Rows]]:
    """Round and stage, with the round's tensors of both; of the fresh prefill the rows that were run in both."""
    for round_ in dict.fromkeys(number for number, _ in (*fresh, *continued)):
        before, now = (
            {stage: value for (number, stage), value in one.items() if number == round_} for one in (fresh, continued)
        )
        if round_ == 0:
            before = {stage: _behind(value, now.get(stage)) for stage, value in before.items()}
        for stage in dict.fromkeys((*before, *now)):
            yield (
                round_,
                stage,
                before | dict.fromkeys(now.keys() - before, np.zeros(0)),
                (now | dict.fromkeys(before.keys() - now, np.zeros(0))),
            )


def _behind(value: np.ndarray, other: np.ndarray | None) -> np.ndarray:
    """As many of its last rows as another has, where that has fewer."""
    return value if other is None or len(other) >= len(value) else value[len(value) - len(other) :]


def _apart(within: WithinNoise, stage: str, before: Rows, now: Rows) -> np.ndarray:
    """How far each row is from fresh, as a multiple of its bound; infinite where one side has other rows."""
    if before[stage].shape != now[stage].shape:
        return np.full(max(len(now[stage]), 1), np.inf)
    return within.apart(stage, before, now)
