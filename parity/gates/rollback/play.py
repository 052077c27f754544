"""Plays a history on a device, and says which invariant breaks first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from parity.compare.report import Place
from parity.errors import DeviceEnded, DeviceFailed
from parity.families import agreeing
from parity.gates.rollback.baseline import Baseline, RecordingTap
from parity.gates.rollback.history import History, RoundPlan, SequencePlan, TapError
from parity.gates.rollback.invariants import InvariantBroken, Invariants, SequenceState, position_of
from parity.gates.rollback.kept import KeptRows
from parity.gates.rollback.sameness import RepeatComparison, chosen
from parity.raised import raised_text, refuses
from parity.seam import Device, Poisonable
from parity.stages import ACCEPT_EMITTED, DRAFT_TOKENS, TARGET_LOGITS, TARGET_TOKENS, VERIFY_LOGITS, VERIFY_TOKENS


class RestartRound(Exception):
    """An injected error after which the round starts again from `draft`."""


class HistoryPlayer(Invariants):
    """Drives one device through histories.

    Args:
        truths: the prompts that histories start from; their text serves every precision.
        exact: only what holds bit for bit, in any precision; without the never-speculated state.
        fewer: `draft` may give fewer than K drafts; as many are verified.
        same: how a verb that is called again is compared with the first time; by its bits where None.
    """

    def __init__(
        self,
        device: Device,
        baselines: Sequence[Baseline],
        exact: bool,
        fewer: bool = False,
        same: RepeatComparison | None = None,
        kept: KeptRows | None = None,
    ):
        super().__init__(device, exact, same, kept)
        self.baselines, self.fewer = baselines, fewer
        self.failed: dict[str, dict[str, np.ndarray]] = {}
        self.stages: dict[str, int] = {}

    def play(self, history: History) -> None:
        """Run it.

        Raises:
            Broken: an invariant does not hold, or the device breaks down.
        """
        rounds = self.coverage.rounds
        for plan in history:
            self._start(plan)
            for round_ in plan.rounds:
                if self._finished():
                    break
                self._round(round_)
        self.coverage.longest = max(self.coverage.longest, self.coverage.rounds - rounds)

    def _start(self, plan: SequencePlan) -> None:
        baseline = self.baselines[plan.start]
        if not self.exact:
            self._computed(baseline)
        self.failed = {}
        cached = self.family.prompt_rows(len(baseline.ids))
        self.sequence = sequence = SequenceState(baseline, min(plan.budget, baseline.more), [], cached)
        error = plan.error and TapError("prefill", plan.error.where)
        first, tap = self._verb(
            "prefill", error, baseline.ids, sequence.budget, routes=self.routes(0, len(baseline.ids))
        )
        self.tokens([int(first)], len(baseline.ids) - 1, TARGET_TOKENS)
        sequence.emitted.append(int(first))
        self.caches(tap.tensors)

    def _computed(self, baseline: Baseline) -> None:
        """The never-speculated state is computed on this device: now, and not in mid-round."""
        try:
            baseline.compute()
        except DeviceFailed as wrong:
            if isinstance(wrong, DeviceEnded) or refuses(wrong):
                raise
            place = Place(wrong.call, None, baseline.prompt, 0)
            raise InvariantBroken(
                "rows", f"without speculation, {wrong.call} raised {raised_text(wrong)}", place
            ) from wrong

    def _finished(self) -> bool:
        sequence = self.sequence
        return len(sequence.emitted) >= sequence.budget or sequence.emitted[-1] in self.eos

    def _round(self, plan: RoundPlan) -> None:
        sequence = self.sequence
        sequence.round += 1
        sequence.drafting = sequence.drafting and not plan.plain
        drafts, _, emitted = self._plan(plan, self._asked(plan))
        self.coverage.rounds += 1
        self.coverage.accepted[len(emitted) - 1, len(drafts)] += len(emitted) == min(plan.right, len(drafts)) + 1
        if plan.rehearsed:
            self._rehearse(plan, drafts, self.routes(sequence.length, sequence.length + len(emitted)))
        if plan.poison is not None:
            cast(Poisonable, self.device).poison(plan.poison)
            self.coverage.poisoned[plan.poison] += 1
        if plan.error and plan.error.verb == "prefill":
            self._broken_prefill(plan.error)
        try:
            self._verbs(plan, plan.error)
        except RestartRound:
            self._verbs(plan, None)

    def _plan(self, plan: RoundPlan, room: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """Drafts [n], what verify says of them [n+1], and what has to be emitted."""
        sequence, offered = self.sequence, 0 if plan.plain else min(plan.offered, room)
        after = sequence.baseline.text[len(sequence.baseline.ids) + len(sequence.emitted) :]
        right = min(plan.right, offered, len(after) - 1)
        drafts = (after + sequence.baseline.text)[:offered]
        tokens = after[: right + 1] + drafts[right + 1 :] + [after[0]]
        if right < offered:
            drafts[right] = next(token for token in (*sequence.baseline.text, 0, 1) if token != after[right])
            if plan.end and self.eos:  # and the drafts behind it agree too: none of them may come out
                drafts[right] = tokens[right] = self.eos[0]
        emitted = tokens[: right + 1][: sequence.budget - len(sequence.emitted)]
        return np.array(drafts, np.int64), np.array(tokens[: offered + 1], np.int64), emitted

    def _asked(self, plan: RoundPlan) -> int:
        """K of a round."""
        return self.k if plan.asked is None else plan.asked

    def _rehearse(self, plan: RoundPlan, drafts: np.ndarray, routes: dict[str, np.ndarray]) -> None:
        """Draft and verify up to the last stage that is shown, where the tap raises: it has seen everything."""
        if self.sequence.drafting:
            self._fail("draft", self._last("draft"), (), {}, _told(plan))
        self._fail("verify", self._last("verify"), (drafts,), routes)

    def _broken_prefill(self, error: TapError) -> None:
        """A prefill of another prompt fails in mid-sequence: the sequence continues."""
        other = self.baselines[(self.baselines.index(self.sequence.baseline) + 1) % len(self.baselines)]
        self.coverage.errors["prefill"] += self._fail("prefill", self._at("prefill", error), (other.ids, 2), {})
        self.failed.pop("prefill", None)

    def _verbs(self, plan: RoundPlan, error: TapError | None) -> None:
        sequence, before, k = self.sequence, self.sequence.length, self._asked(plan)
        given: Sequence[int] = ()
        room = k
        if sequence.drafting:
            given, tap = self._verb("draft", error, behind=_told(plan))
            self.drafter_rows(tap.tensors, k)
            room = len(given)
            if room > k or (room < k and not (self.fewer or self.family.fewer)):
                raise InvariantBroken("rows", f"draft gave {room} drafts, not {k}", self.place(DRAFT_TOKENS))
            room = k if self.family.fewer else room  # a device of such a family takes any number
        drafts, tokens, emitted = self._plan(plan, room)
        routes = self.routes(before, before + len(emitted))
        said, verified = self._verb("verify", error, drafts, routes=routes)
        if np.shape(said) != np.shape(tokens):
            message = f"verify gave shape {np.shape(said)} for {len(tokens)} rows"
            raise InvariantBroken("rows", message, self.place(VERIFY_TOKENS))
        self.tokens(said[: len(emitted)].tolist(), before, VERIFY_TOKENS)
        self.against(VERIFY_LOGITS, verified.tensors, TARGET_LOGITS, before, len(emitted))
        came, tap = self._verb("commit", error, drafts, tokens)
        if list(map(int, came)) != emitted:
            raise InvariantBroken(
                "rows", f"commit emitted {list(map(int, came))}, not {emitted}", self.place(ACCEPT_EMITTED)
            )
        sequence.emitted += emitted
        if sequence.drafting:  # the last draft is run over in the next round, if at all
            agreed = agreeing([int(token) for token in given[: max(room - 1, 0)]], emitted)
            sequence.cached = self.family.kept(before, agreed, len(emitted))
        self.caches(tap.tensors, verified.tensors)

    def _verb(
        self,
        verb: str,
        error: TapError | None,
        *arguments: Any,
        routes: dict[str, np.ndarray] | None = None,
        behind: tuple[int, ...] = (),
    ) -> tuple[Any, RecordingTap]:
        """Call a verb and take whatever the device returns; before it, where the error says so, once with a tap that
        raises."""
        if error and error.verb == verb:
            fired = self._fail(verb, self._at(verb, error), arguments, routes or {}, behind)
            self.coverage.errors[verb] += fired
            if fired and error.restart and verb in ("verify", "commit"):
                raise RestartRound
        tap = RecordingTap(routes=self._routed(verb, routes or {}))
        try:
            result = getattr(self.device, verb)(*arguments, tap, *behind)
        except DeviceEnded:
            raise
        except Exception as wrong:
            raise InvariantBroken("rows", f"{verb} raised {raised_text(wrong)}", self.place(verb)) from wrong
        self.stages.setdefault(verb, tap.count)
        self._again(verb, tap.tensors)
        return result, tap

    def _at(self, verb: str, error: TapError) -> int | None:
        """The number of the stage at which the tap raises; None where the verb shows none."""
        count = self.stages.get(verb, 1)
        return error.where * count // 1000 if count else None

    def _last(self, verb: str) -> int | None:
        return self.stages.get(verb, 0) - 1 if self.stages.get(verb) else None

    def _fail(
        self,
        verb: str,
        at: int | None,
        arguments: tuple[Any, ...],
        routes: dict[str, np.ndarray],
        behind: tuple[int, ...] = (),
    ) -> bool:
        """Call a verb with a tap that raises; whether it came to that. A verb without a stage is not called: it would
        run to its end."""
        if at is None:
            return False
        tap = RecordingTap(at, routes)
        try:
            getattr(self.device, verb)(*arguments, tap, *behind)
        except DeviceEnded:
            raise
        except Exception as wrong:
            if not tap.fired:
                raise InvariantBroken("rows", f"{verb} raised {raised_text(wrong)}", self.place(verb)) from wrong
        else:
            if tap.fired:
                raise InvariantBroken(
                    "again", f"{verb} continues after its tap raised", self.place(list(tap.tensors)[-1])
                )
        self.failed[verb] = tap.tensors
        return tap.fired

    def _routed(self, verb: str, true: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The routes of true rows; behind an error the other choices of the first time, where these may fall
        otherwise."""
        before = chosen(self.names, self.failed.get(verb, {})) if self.same.forces else {}
        for stage in before.keys() & true.keys():
            before[stage] = np.concatenate([true[stage], before[stage][len(true[stage]) :]])
        return true | before

    def _again(self, verb: str, tensors: dict[str, np.ndarray]) -> None:
        """What was handed over before the error must come once more."""
        first = self.failed.pop(verb, {})
        for stage in first:
            row = self.same.changed(stage, first, tensors)
            if row is not None:
                message = f"{stage} row {row} differs when {verb} is called again"
                position = position_of(verb, stage, row, self.sequence.length, self.sequence.cached)
                raise InvariantBroken("again", message, self.place(stage, position))


def _told(plan: RoundPlan) -> tuple[int, ...]:
    """What `draft` takes behind its tap, of a device whose K may change: nothing where it is K."""
    return () if plan.asked is None else (plan.asked,)
