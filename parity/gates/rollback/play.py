"""Plays a history on a device, and says which invariant breaks first."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np

from parity.compare.report import Place
from parity.errors import DeviceEnded, DeviceFailed
from parity.gates.rollback.history import Error, History, Round, Sequence
from parity.gates.rollback.invariants import Broken, Invariants, Live, position_of
from parity.gates.rollback.sameness import Sameness, chosen
from parity.gates.rollback.truth import Truth, Watch
from parity.guard import raised, refuses
from parity.seam import Device

LAST = {"draft": "drafter.draft_tokens", "verify": "verify.tokens"}
"""The last stage of a verb: a tap that raises there has seen everything."""


class RoundAnew(Exception):
    """An injected error after which the round starts again from `draft`."""


class Player(Invariants):
    """Drives one device through histories.

    Args:
        truths: the prompts that histories start from; their text serves every precision.
        exact: only what holds bit for bit, in any precision; without the never-speculated state.
        fewer: `draft` may give fewer than K drafts; as many are verified.
        same: how a verb that is called again is compared with the first time; by its bits where None.
    """

    def __init__(
        self, device: Device, truths: Many[Truth], exact: bool, fewer: bool = False, same: Sameness | None = None
    ):
        super().__init__(device, exact, same)
        self.truths, self.fewer = truths, fewer
        self.failed: dict[str, dict[str, np.ndarray]] = {}
        self.stages: dict[str, int] = {}

    def play(self, history: History) -> None:
        """Run it.

        Raises:
            Broken: an invariant does not hold, or the device breaks down.
        """
        rounds = self.tally.rounds
        for one in history:
            self._start(one)
            for round_ in one.rounds:
                if self._finished():
                    break
                self._round(round_)
        self.tally.longest = max(self.tally.longest, self.tally.rounds - rounds)

    def _start(self, one: Sequence) -> None:
        truth = self.truths[one.start]
        if not self.exact:
            self._computed(truth)
        self.failed = {}
        self.live = live = Live(truth, min(one.budget, truth.more), [], 1)
        error = one.error and Error("prefill", one.error.where)
        first, watch = self._verb("prefill", error, truth.ids, live.budget, routes=self.routes(0, len(truth.ids)))
        self.tokens([int(first)], len(truth.ids) - 1, "target.tokens")
        live.emitted.append(int(first))
        self.caches(watch.tensors, len(truth.ids) - 1)

    def _computed(self, truth: Truth) -> None:
        """The never-speculated state is computed on this device: now, and not in mid-round."""
        try:
            truth.state, truth.drafts
        except DeviceFailed as wrong:
            if isinstance(wrong, DeviceEnded) or refuses(wrong):
                raise
            place = Place(wrong.call, None, truth.prompt, 0)
            raise Broken("rows", f"without speculation, {wrong.call} raised {raised(wrong)}", place) from wrong

    def _finished(self) -> bool:
        live = self.live
        return len(live.emitted) >= live.budget or live.emitted[-1] in self.eos

    def _round(self, one: Round) -> None:
        live = self.live
        live.round += 1
        live.drafting = live.drafting and not one.plain
        drafts, _, emitted = self._plan(one, self.k)
        self.tally.rounds += 1
        self.tally.accepted[len(emitted) - 1, len(drafts)] += len(emitted) == min(one.right, len(drafts)) + 1
        if one.rehearsed:
            self._rehearse(drafts, self.routes(live.length, live.length + len(emitted)))
        if one.poison is not None:
            self.device.poison(one.poison)
            self.tally.poisoned[one.poison] += 1
        if one.error and one.error.verb == "prefill":
            self._broken_prefill(one.error)
        try:
            self._verbs(one, one.error)
        except RoundAnew:
            self._verbs(one, None)

    def _plan(self, one: Round, room: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """Drafts [n], what verify says of them [n+1], and what has to be emitted."""
        live, offered = self.live, 0 if one.plain else min(one.offered, room)
        after = live.truth.text[len(live.truth.ids) + len(live.emitted) :]
        right = min(one.right, offered, len(after) - 1)
        drafts = (after + live.truth.text)[:offered]
        tokens = after[: right + 1] + drafts[right + 1 :] + [after[0]]
        if right < offered:
            drafts[right] = next(token for token in (*live.truth.text, 0, 1) if token != after[right])
            if one.end and self.eos:  # and the drafts behind it agree too: none of them may come out
                drafts[right] = tokens[right] = self.eos[0]
        emitted = tokens[: right + 1][: live.budget - len(live.emitted)]
        return np.array(drafts, np.int64), np.array(tokens[: offered + 1], np.int64), emitted

    def _rehearse(self, drafts: np.ndarray, routes: dict[str, np.ndarray]) -> None:
        """Draft and verify up to their last stage, where the tap raises."""
        for verb, arguments in (("draft", ()), ("verify", (drafts,))):
            if verb == "verify" or self.live.drafting:
                self._fail(verb, LAST[verb], arguments, routes if verb == "verify" else {})

    def _broken_prefill(self, error: Error) -> None:
        """A prefill of another prompt fails in mid-sequence: the sequence goes on."""
        other = self.truths[(self.truths.index(self.live.truth) + 1) % len(self.truths)]
        self.tally.errors["prefill"] += self._fail("prefill", self._at("prefill", error), (other.ids, 2), {})
        self.failed.pop("prefill")

    def _verbs(self, one: Round, error: Error | None) -> None:
        live, before, room = self.live, self.live.length, self.k
        if live.drafting:
            given, watch = self._verb("draft", error)
            self.drafter_rows(watch.tensors)
            room = len(given)
            if room > self.k or (room < self.k and not self.fewer):
                raise Broken("rows", f"draft gave {room} drafts, not {self.k}", self.place("drafter.draft_tokens"))
        drafts, tokens, emitted = self._plan(one, room)
        routes = self.routes(before, before + len(emitted))
        said, verified = self._verb("verify", error, drafts, routes=routes)
        if np.shape(said) != np.shape(tokens):
            message = f"verify gave shape {np.shape(said)} for {len(tokens)} rows"
            raise Broken("rows", message, self.place("verify.tokens"))
        self.tokens(said[: len(emitted)].tolist(), before, "verify.tokens")
        self.against("verify.logits", verified.tensors, "target.logits", before, len(emitted))
        came, watch = self._verb("commit", error, drafts, tokens)
        if list(map(int, came)) != emitted:
            raise Broken("rows", f"commit emitted {list(map(int, came))}, not {emitted}", self.place("accept.emitted"))
        live.emitted += emitted
        live.committed = len(emitted)
        self.caches(watch.tensors, before, verified.tensors)

    def _verb(self, verb: str, error: Error | None, *arguments, routes=None) -> tuple[object, Watch]:
        """Call a verb; before it, where the error says so, once with a tap that raises."""
        if error and error.verb == verb:
            fired = self._fail(verb, self._at(verb, error), arguments, routes or {})
            self.tally.errors[verb] += fired
            if fired and error.restart and verb in ("verify", "commit"):
                raise RoundAnew
        watch = Watch(routes=self._routed(verb, routes or {}))
        try:
            result = getattr(self.device, verb)(*arguments, watch)
        except DeviceEnded:
            raise
        except Exception as wrong:
            raise Broken("rows", f"{verb} raised {raised(wrong)}", self.place(verb)) from wrong
        self.stages.setdefault(verb, watch.count)
        self._again(verb, watch.tensors)
        return result, watch

    def _at(self, verb: str, error: Error) -> int:
        return error.where * self.stages.get(verb, 1) // 1000

    def _fail(self, verb: str, at: int | str, arguments: tuple, routes: dict) -> bool:
        """Call a verb with a tap that raises; whether it came to that."""
        watch = Watch(at, routes)
        try:
            getattr(self.device, verb)(*arguments, watch)
        except DeviceEnded:
            raise
        except Exception as wrong:
            if not watch.fired:
                raise Broken("rows", f"{verb} raised {raised(wrong)}", self.place(verb)) from wrong
        else:
            if watch.fired:
                raise Broken("again", f"{verb} goes on after its tap raised", self.place(list(watch.tensors)[-1]))
        self.failed[verb] = watch.tensors
        return watch.fired

    def _routed(self, verb: str, true: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The routes of true rows; behind an error the other choices of the first time, where these may fall otherwise."""
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
                message = f"{stage} row {row} is another when {verb} is called again"
                position = position_of(verb, stage, row, self.live.length, self.live.committed)
                raise Broken("again", message, self.place(stage, position))
