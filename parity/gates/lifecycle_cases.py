"""What happens to one sequence by several ways: each case is run fresh, and continued from what is in the caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any

import numpy as np

from parity.batching import perform
from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, PASS, Place
from parity.errors import DeviceFailed, NotOffered, UsageError
from parity.gates.difference import Difference, DifferingRow
from parity.gates.gate import Check
from parity.gates.own_rounds import ended, free_trace, own_end, own_prefill, own_rounds
from parity.gates.rollback.sameness import WithinNoise
from parity.raised import raised_text
from parity.rounds import free_rounds, untapped
from parity.seam import Device, Saving
from parity.stages import ACCEPT_LENGTH
from parity.trace import ForcingTrace, Recorded

ROUNDS = 2
"""Behind the prefill: a draft, and one that finds its rows in the caches."""

END = 2 * ROUNDS
"""The number of the round in which the text ends: behind all others."""

CHUNK = 16
"""Rows of a prefill that runs in parts."""


ANOTHER = "parity, another"
"""What the other sequence is saved as."""


class _NotExercised(Exception):
    """The golden's prompts do not lead where the check has to look."""


Both = tuple[Recorded, Recorded]
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

    def fresh(self, device: Device | None = None, ids: Sequence[int] | None = None) -> Recorded:
        """Prefill and rounds."""
        return self._run(device or self.device, ids or self.ids)

    def continued(self, cached: int, ids: Sequence[int] | None = None) -> Recorded:
        """The same, the prefill from the caches, where `cached` rows of it are there."""
        return self._run(self.device, ids or self.ids, cached)

    def _run(self, device: Device, ids: Sequence[int], cached: int | None = None) -> Recorded:
        trace = free_trace(self.within.names)
        perform(device, own_prefill(trace, ids, self.budget, cached))
        return self._to_the_end(device, trace)

    def _to_the_end(self, device: Device, trace: ForcingTrace) -> Recorded:
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

    def restored(self, rounds: int, second: bool = False) -> Both:
        """Taken off behind some rounds, another prompt in its place that is taken off as well, and put back.

        Args:
            second: it is the second of the two that is taken off, and put back behind the first.
        """
        if not isinstance(self.device, Saving):
            raise NotOffered("no save and restore")
        tensors: list[Recorded] = []
        for between in (False, True):
            trace, eos = free_trace(self.within.names), self.device.describe().eos
            if between and second:
                self._another_taken_off(self.device)
            perform(self.device, own_prefill(trace, self.ids, self.budget))
            perform(self.device, own_rounds(trace, rounds, eos))
            if between:
                self.device.save("parity")
                if not second:
                    self._another_taken_off(self.device)
                perform(self.device, free_rounds(self.device, self.other, self.budget))
                for name in (ANOTHER, "parity") if second else ("parity",):
                    self.device.restore(name)
            tensors.append(self._to_the_end(self.device, trace))
        return tensors[0], tensors[1]

    def restored_second(self, rounds: int) -> Both:
        """The same of the second of two that were taken off."""
        return self.restored(rounds, second=True)

    def _another_taken_off(self, device: Saving) -> None:
        perform(self.device, own_prefill(free_trace(self.within.names), self.other, self.budget))
        device.save(ANOTHER)

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
        return Check(name, FAIL, said, {"case": at.where}, Place(at.stage, None, 0, at.round))
    far = "another value" if at.apart == float("inf") else within.said(at.stage, at.apart)
    said = f"{at.where}: {at.stage} is not what it is fresh: {far}" if at.where else f"{at.stage} differs: {far}"
    return Check(name, FAIL, said, {"case": at.where}, Place(at.stage, None, 0, at.round))


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


def _behind(fresh: Recorded, continued: Recorded, cached: int) -> Both:
    """Of the fresh prefill the rows that the other runs over: all behind those cached, at least."""
    for (round_, stage), value in fresh.items():
        rows = len(continued.get((round_, stage), value))
        if round_ == 0 and len(value) - cached <= rows < len(value):
            fresh = {**fresh, (round_, stage): value[len(value) - rows :]}
    return fresh, continued
