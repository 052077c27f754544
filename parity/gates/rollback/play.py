"""Plays a history on a device, and says which invariant breaks first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import numpy as np

from parity.compare.report import Place
from parity.gates.rollback.history import Error, History, Round, Sequence
from parity.gates.rollback.truth import FLOAT32_BOUND, Truth, Watch, require_caches, row_errors
from parity.seam import Device
from parity.stages import declared

LAST = {"draft": "drafter.draft_tokens", "verify": "verify.tokens"}
"""The last stage of a verb: a tap that raises there has seen everything."""


class Broken(Exception):
    """An invariant does not hold.

    Args:
        aspect: `rows` (lengths, tokens, contents bit for bit), `state` (against the never-speculated run), or
            `again` (a verb that was called again did something else).
    """

    def __init__(self, aspect: str, message: str, place: Place | None = None):
        super().__init__(message)
        self.aspect, self.message, self.place = aspect, message, place


class RoundAnew(Exception):
    """An injected error after which the round starts again from `draft`."""


@dataclass
class Tally:
    """What the histories covered."""

    rounds: int = 0
    longest: int = 0
    accepted: Counter = field(default_factory=Counter)
    poisoned: Counter = field(default_factory=Counter)
    errors: Counter = field(default_factory=Counter)
    worst: tuple[float, str] = (0.0, "nothing")
    rows: int = 0


@dataclass
class Live:
    """The sequence in the device, as it has to be."""

    truth: Truth
    budget: int
    emitted: list[int]
    committed: int
    drafting: bool = True
    round: int = 0
    caches: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Rows of the target's cache: all tokens but the last."""
        return len(self.truth.ids) + len(self.emitted) - 1


class Player:
    """Drives one device through histories.

    Args:
        truths: the prompts that histories start from; their text serves every precision.
        exact: only what holds bit for bit, in any precision; without the never-speculated state.
        fewer: `draft` may give fewer than K drafts; as many are verified.
    """

    def __init__(self, device: Device, truths: Many[Truth], exact: bool, fewer: bool = False):
        self.device, self.truths, self.exact, self.fewer = device, truths, exact, fewer
        says = device.describe()
        self.k, self.eos, self.layers = says.k, says.eos, says.num_layers
        self.names = declared(says.num_layers, says.num_drafter_layers)
        self.tally, self.failed = Tally(), {}
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
            truth.state, truth.drafts  # computed on this device: now, and not in mid-round
        self.failed = {}
        self.live = live = Live(truth, min(one.budget, truth.more), [], 1)
        error = one.error and Error("prefill", one.error.where)
        first, watch = self._verb("prefill", error, truth.ids, live.budget, routes=self._routes(0, len(truth.ids)))
        self._tokens([int(first)], len(truth.ids) - 1, "target.tokens")
        live.emitted.append(int(first))
        self._caches(watch.tensors, len(truth.ids) - 1)

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
            self._rehearse(drafts, self._routes(live.length, live.length + len(emitted)))
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
            self._drafter_rows(watch.tensors)
            room = len(given)
            if room > self.k or (room < self.k and not self.fewer):
                raise Broken("rows", f"draft gave {room} drafts, not {self.k}", self._place("drafter.draft_tokens"))
        drafts, tokens, emitted = self._plan(one, room)
        routes = self._routes(before, before + len(emitted))
        said, verified = self._verb("verify", error, drafts, routes=routes)
        if np.shape(said) != np.shape(tokens):
            raise Broken("rows", f"verify gave shape {np.shape(said)} for {len(tokens)} rows", self._place("verify.tokens"))
        self._tokens(said[: len(emitted)].tolist(), before, "verify.tokens")
        self._against("verify.logits", verified.tensors, "target.logits", before, len(emitted))
        came, watch = self._verb("commit", error, drafts, tokens)
        if list(map(int, came)) != emitted:
            raise Broken("rows", f"commit emitted {list(map(int, came))}, not {emitted}", self._place("accept.emitted"))
        live.emitted += emitted
        live.committed = len(emitted)
        self._caches(watch.tensors, before, verified.tensors)

    def _verb(self, verb: str, error: Error | None, *arguments, routes=None) -> tuple[object, Watch]:
        """Call a verb; before it, where the error says so, once with a tap that raises."""
        if error and error.verb == verb:
            fired = self._fail(verb, self._at(verb, error), arguments, routes or {})
            self.tally.errors[verb] += fired
            if fired and error.restart and verb in ("verify", "commit"):
                raise RoundAnew
        watch = Watch(routes=routes)
        try:
            result = getattr(self.device, verb)(*arguments, watch)
        except Exception as wrong:
            raise Broken("rows", f"{verb} raised {type(wrong).__name__}: {wrong}", self._place(f"{verb}")) from wrong
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
        except Exception as wrong:
            if not watch.fired:
                message = f"{verb} raised {type(wrong).__name__}: {wrong}"
                raise Broken("rows", message, self._place(verb)) from wrong
        else:
            if watch.fired:
                raise Broken("again", f"{verb} goes on after its tap raised", self._place(list(watch.tensors)[-1]))
        self.failed[verb] = watch.tensors
        return watch.fired

    def _again(self, verb: str, tensors: dict[str, np.ndarray]) -> None:
        """What was handed over before the error must come once more, bit for bit."""
        for stage, before in self.failed.pop(verb, {}).items():
            now = tensors.get(stage)
            row = -1 if now is None else changed_row(before, now)
            if row is not None:
                raise Broken("again", f"{stage} row {max(row, 0)} is another when {verb} is called again", self._place(stage, max(row, 0)))

    def _drafter_rows(self, tensors: dict[str, np.ndarray]) -> None:
        """Committed rows are the last round's tokens, in the slots behind the cache's length; then the logits."""
        live = self.live
        start, count = live.length - live.committed, live.committed
        for stage, expected in (
            ("drafter.input_ids", live.emitted[-count:]),
            ("drafter.positions", list(range(start, start + count))),
            ("drafter.slots", list(range(start, start + count))),
        ):
            found = tensors.get(stage, np.array(expected))[:count].tolist()
            if found != expected:
                raise Broken("rows", f"{stage} of the committed rows is {found}, not {expected}", self._place(stage, start))
        true = None if self.exact else live.truth.drafts.get(live.length)
        if true is not None:
            self._compare("drafter.logits", tensors["drafter.logits"], true, start)

    def _tokens(self, found: list[int], position: int, stage: str) -> None:
        """Greedy ids of true rows, from this position on, are the text's, or as high as those."""
        if self.exact:
            return
        truth = self.live.truth
        for row, token in enumerate(found, position):
            if token != truth.text[row + 1] and not truth.tie(row, token):
                message = f"{stage} row {row} is {token}; never having speculated the device says {truth.text[row + 1]}"
                raise Broken("state", message, self._place(stage, row))

    def _caches(self, tensors: dict, before: int, verified: dict | None = None) -> None:
        """Lengths, kept rows, new rows."""
        live = self.live
        require_caches(self.device, tensors)
        drafter = before if live.drafting else None
        for side, length in (("target", live.length), ("drafter", drafter)):
            if length is None:
                continue
            self._length(f"kv.{side}.length", tensors, length)
            for stage in (s for s in tensors if s.startswith(f"kv.{side}.") and not s.endswith(".length")):
                self._contents(stage, tensors[stage], length, verified)
        live.caches = {stage: x for stage, x in tensors.items() if stage.startswith("kv.")}

    def _length(self, stage: str, tensors: dict, length: int) -> None:
        found = tensors[stage].tolist()
        if found != [length]:
            raise Broken("rows", f"{stage} is {found[0] if found else 'empty'}, not {length}", self._place(stage))

    def _contents(self, stage: str, now: np.ndarray, length: int, verified: dict | None) -> None:
        if len(now) != length:
            raise Broken("rows", f"{stage} has {len(now)} rows, not {length}", self._place(stage, min(len(now), length)))
        kept = self.live.caches.get(stage, now[:0])
        row = changed_row(kept, now[: len(kept)])
        if row is not None:
            raise Broken("rows", f"{stage} row {row} changed", self._place(stage, row))
        computed = (verified or {}).get(stage.replace("kv.target.", "target.layers."))
        if computed is not None and computed.dtype == now.dtype:
            row = changed_row(computed[: len(now) - len(kept)], now[len(kept) :])
            if row is not None:
                row += len(kept)
                raise Broken("rows", f"{stage} row {row} is not what verify computed", self._place(stage, row))
        self.tally.rows += len(kept)
        if not self.exact:
            self._compare(stage, now[len(kept) :], self.live.truth.state[stage], len(kept), len(kept))

    def _against(self, stage: str, tensors: dict, true: str, start: int, count: int) -> None:
        state = None if self.exact else self.live.truth.state.get(true)
        if state is not None and stage in tensors:
            self._compare(stage, tensors[stage][:count], state, start, start)

    def _compare(self, stage: str, found: np.ndarray, true: np.ndarray, position: int, start: int = 0) -> None:
        """Rows against the never-speculated ones, true[start:], within the float32 bound."""
        errors = row_errors(found, true, start)
        if not len(errors):
            return
        worst = int(errors.argmax())
        self.tally.worst = max(self.tally.worst, (float(errors[worst]), stage))
        if errors[worst] > FLOAT32_BOUND:
            row = int((errors > FLOAT32_BOUND).argmax())
            message = f"{stage} row {position + row} is {errors[row]:.2g} off the never-speculated one"
            raise Broken("state", message, self._place(stage, position + row))

    def _routes(self, start: int, end: int) -> dict[str, np.ndarray]:
        return {} if self.exact else self.live.truth.routes(start, end)

    def _place(self, stage: str, position: int | None = None) -> Place:
        layer = self.names[stage].layer if stage in self.names else None
        return Place(stage, layer, self.live.truth.prompt, self.live.round, position)


def changed_row(before: np.ndarray, now: np.ndarray) -> int | None:
    """The first row whose bits differ; None if all are the same."""
    if before.shape != now.shape or before.dtype != now.dtype:
        return 0
    if not before.size:
        return None
    bits = (np.ascontiguousarray(x).view(np.uint8).reshape(len(x), -1) for x in (before, now))
    differ = np.not_equal(*bits).any(axis=1)
    return int(differ.argmax()) if differ.any() else None
