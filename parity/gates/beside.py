"""One lane of a batch as a device of one sequence, with other sequences in the lanes beside it.

Every verb is called for the neighbours in the same call, each with a prompt, a budget and choices of its own: a prefill
begins all lanes anew, a prefill from the caches continues each from a number of rows of its own, and what is saved and
restored is the one lane's alone, while the neighbours go on from where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parity.rounds import untapped
from parity.seam import Batched, Description, Tap


@dataclass
class Neighbour:
    """Who sits in another lane.

    Attributes:
        prompt: what it began with.
        budget: its tokens.
        emitted: what came out since it began.
        drafts, tokens: of the round that it is in.
    """

    prompt: list[int]
    budget: int
    emitted: list[int] = field(default_factory=list)
    drafts: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    tokens: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def lives(self, eos: Sequence[int]) -> bool:
        """Whether it can go on."""
        return 0 < len(self.emitted) < self.budget and self.emitted[-1] not in eos


class Beside:
    """The sequence of one lane.

    Args:
        device: a `Batched`, of which what is asked for here has to be offered as well.
        lane: the sequence's own.
        prompts: of the other lanes in their order, one after the other.
        budget: tokens of each of those.

    Attributes:
        continued, beside: how often the lane's sequence went on from its cache or was put back, and how often it did
            while a neighbour was in the midst of its text.
    """

    def __init__(self, device: Batched, lane: int, prompts: Sequence[Sequence[int]], budget: int) -> None:
        self._device, self._lane, says = device, lane, device.describe()
        others = enumerate(other for other in range(says.lanes) if other != lane)
        self._others = {other: Neighbour(list(prompts[place % len(prompts)]), budget) for place, other in others}
        self._eos, self.continued, self.beside = says.eos, 0, 0

    def describe(self) -> Description:
        """What the device is."""
        return self._device.describe()

    def prefill(self, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap) -> int:
        """All lanes begin a sequence."""
        others = self._others
        columns = [(other.prompt, other.budget) for other in others.values()]
        return self._begun("prefill", list(others), columns, (prompt_ids, max_new_tokens), tap)

    def prefill_from(self, cached: int, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap) -> int:
        """Every lane continues: a neighbour what it has said, from the rows of its prompt."""
        live = self._counted()
        columns = [(len(other.prompt), [*other.prompt, *other.emitted], other.budget) for other in live.values()]
        return self._begun("prefill_from", list(live), columns, (cached, prompt_ids, max_new_tokens), tap)

    def draft(self, tap: Tap) -> np.ndarray:
        """Drafts of every lane that goes on."""
        own: np.ndarray
        own, live = self._round("draft", dict.fromkeys(self._live(), ()), (), tap)
        for lane, drafts in live.items():
            self._others[lane].drafts = np.array(drafts, np.int64)
        return own

    def verify(self, draft_tokens: np.ndarray, tap: Tap) -> np.ndarray:
        """Each lane's own drafts."""
        own: np.ndarray
        live = {lane: (other.drafts,) for lane, other in self._live().items()}
        own, verified = self._round("verify", live, (draft_tokens,), tap)
        for lane, tokens in verified.items():
            self._others[lane].tokens = np.array(tokens, np.int64)
        return own

    def commit(self, draft_tokens: np.ndarray, verify_tokens: np.ndarray, tap: Tap) -> np.ndarray:
        """Each lane what it accepts."""
        own: np.ndarray
        live = {lane: (other.drafts, other.tokens) for lane, other in self._live().items()}
        own, committed = self._round("commit", live, (draft_tokens, verify_tokens), tap)
        for lane, emitted in committed.items():
            self._others[lane].emitted += [int(token) for token in emitted]
        return own

    def save(self, name: str) -> None:
        """The lane's sequence alone."""
        self._any.save_batch([self._lane], [name])

    def restore(self, name: str) -> None:
        """In the lane alone; its neighbours are where they are."""
        self._counted()
        self._any.restore_batch([self._lane], [name])

    @property
    def _any(self) -> Any:
        return self._device

    def _live(self) -> dict[int, Neighbour]:
        return {lane: other for lane, other in self._others.items() if other.lives(self._eos)}

    def _counted(self) -> dict[int, Neighbour]:
        """The neighbours that go on, where the lane's sequence continues."""
        live = self._live()
        self.continued, self.beside = self.continued + 1, self.beside + bool(live)
        return live

    def _begun(
        self, verb: str, lanes: Sequence[int], others: Sequence[tuple[Any, ...]], own: tuple[Any, ...], tap: Tap
    ) -> int:
        """The lane's first token; the neighbours begin with theirs."""
        first, firsts = self._round(verb, dict(zip(lanes, others, strict=True)), own, tap)
        for lane, (*_, said, _) in zip(lanes, others, strict=True):
            self._others[lane].prompt, self._others[lane].emitted = list(said), [int(firsts[lane])]
        return int(first)

    def _round(
        self, verb: str, others: dict[int, tuple[Any, ...]], own: tuple[Any, ...], tap: Tap
    ) -> tuple[Any, dict[int, Any]]:
        """A verb of all these lanes in one call, in the order of lanes; the lane's result, and the others'."""
        given = dict(sorted((others | {self._lane: own}).items()))
        columns = [list(column) for column in zip(*given.values(), strict=True)]
        taps = [tap if lane == self._lane else untapped for lane in given]
        found = dict(zip(given, getattr(self._device, f"{verb}_batch")(list(given), *columns, taps), strict=True))
        return found.pop(self._lane), found
