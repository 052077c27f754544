"""Draft models: rows of known tokens that never run, that run again, or that run too early."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product

from parity.references.hypotheses.catalogue import DRAFT_MODEL, Family, Mutation
from parity.references.hypotheses.lazily import Loop, Tensor
from parity.references.hypotheses.mutating import together
from parity.references.hypotheses.rolled_back import in_slots, uncropped

BONUS_FIX = "behind K accepted drafts two tokens are fed: the last draft, which never ran, and the bonus"
PREFILL_FIX = "the draft model's prefill runs over the whole prompt"
KEPT_FIX = "a round keeps the rows of the drafts that were accepted, and feeds what has none yet"

unfed = Family(drafters=DRAFT_MODEL, cost=2)

HOLE, LATE_HOLE = "its slot holds zeros", "its slot holds zeros once the next row is written"
TAKEN, TAKEN_ROTATED = "the next row takes its slot and its position", "the next row takes its slot, not its position"
TAKEN_ONCE = f"{TAKEN}, and behind that round the length is right"
DRAFTING = ("pre_head_hidden", "logits", "draft_tokens")
"""Stages of the rows that draft."""

COUNTED = "its slot counts already, and holds zeros until the next round runs it"
WITHOUT = (COUNTED, TAKEN_ONCE, LATE_HOLE, HOLE, TAKEN, TAKEN_ROTATED)
"""What stands for a row that never runs."""


@contextmanager
def lacking(loop: Loop, value: str, forget: Callable[[], None]) -> Iterator[None]:
    """Of the tokens that the draft model is owed behind a commit only the newest runs; `forget()` goes before it."""
    lost = [0]

    def owed() -> int:
        """How many rows that will never run are owed: less those that are lost already."""
        state = loop.state
        taken = lost[0] if value in (TAKEN, TAKEN_ROTATED) else 0
        many = max(len(state.pending_taps) - taken - 1, 0)
        lost[0] += many
        state.pending_taps = state.pending_taps[:1]
        return many

    def skip() -> None:
        loop.state.draft_length += owed()

    def commit(inner: Callable[[int], None], length: int) -> None:
        forget()
        with uncropped(loop) as hand_over:
            inner(length)
        if value == TAKEN_ONCE:
            loop.state.draft_length += lost[0]
            loop.state.pending_taps = loop.state.pending_taps[lost[0] :]
            lost[:] = [0]
        if value == HOLE:
            skip()
        elif value not in (LATE_HOLE, COUNTED):
            owed()
        counted = len(loop.state.pending_taps) - 1 if value == COUNTED else 0
        in_slots(loop, loop.state.draft_length + counted)
        hand_over()
        in_slots(loop, loop.state.draft_length)

    def draft(inner: Callable[[], Tensor]) -> Tensor:
        if value == LATE_HOLE:
            skip()
            in_slots(loop, loop.state.draft_length)
        return inner()

    def places(inner: Callable[..., Tensor], committed: int, behind: int) -> Tensor:
        return inner(committed, behind) + (lost[0] if value == TAKEN_ROTATED else 0)

    def prefill(inner: Callable[[Tensor], None], prompt: Tensor) -> None:
        lost[:] = [0]
        inner(prompt)

    changes = (loop.prefill_drafter.around(prefill), loop.commit.around(commit), loop.draft.around(draft))
    with together((*changes, loop.positions.around(places))):
        yield


unfed(
    "draft-bonus-alone",
    "behind K accepted drafts the bonus alone is fed, the last draft's row never runs: {value}",
    stages=("drafter.input_ids", "kv.drafter.*"),
    values=WITHOUT,
    fix=BONUS_FIX,
    seen=("class of llama.cpp's and transformers' missing last draft",),
)(partial(lacking, forget=lambda: None))


@unfed(
    "draft-accepted-dropped",
    "rows of accepted drafts are dropped and not fed again, for each: {value}",
    stages=("kv.drafter.*",),
    values=WITHOUT,
    fix=KEPT_FIX,
)
def _(loop: Loop, value: str) -> Mutation:
    return lacking(loop, value, lambda: _agree(loop, 0))


def _agree(loop: Loop, many: int) -> None:
    """Of the drafts that this round ran over only so many count as accepted."""
    loop.state.chained = loop.state.chained[:many]


@unfed(
    "draft-accepted-again",
    "rows of {value} are dropped, and their tokens fed again",
    stages=("kv.drafter.*",),
    values=("accepted drafts", "a round, committed ones as well,"),
    fix=KEPT_FIX,
)
def _(loop: Loop, value: str) -> Mutation:
    def commit(inner: Callable[[int], None], length: int) -> None:
        _agree(loop, 0)
        if value != "accepted drafts":
            loop.state.draft_length = loop.state.length
        inner(length)

    return loop.commit.around(commit)


@unfed(
    "draft-last-fed",
    "the last draft of a round runs as well, and is {value}",
    stages=("drafter.input_ids", "kv.drafter.*"),
    values=("handed over", "not handed over"),
    fix="K drafts take K passes: the last one's row is the next round's",
)
def _(loop: Loop, value: str) -> Mutation:
    width = [0]

    def tap(inner: Callable[..., Tensor], stage: str, x: Tensor, first: int = 0, total: int | None = None) -> Tensor:
        if stage.split(".")[-1] in DRAFTING or not width[0] or total is None:
            return inner(stage, x, first, total)
        if value == "handed over":
            return inner(stage, x, first, width[0] + 1)
        return inner(stage, x, first, total) if first < width[0] else x

    def draft(inner: Callable[[], Tensor]) -> Tensor:
        state, committed = loop.state, len(loop.state.pending_taps)
        width[:] = [committed + loop.k - 1]
        try:
            drafts = inner()
            state.draft_length -= committed  # rows of a round count from its first one
            loop.run_rows(drafts[-1:], None, width[0], committed, loop.k)
            state.draft_length += committed
        finally:
            width[:] = [0]
        state.chained = tuple(drafts.tolist())
        return drafts

    return together((loop.draft.around(draft), loop.tap.around(tap)))


RUNS: dict[str, Callable[[Tensor], Tensor]] = {
    "the prompt but its last token": lambda prompt: prompt[:-1],
    "the prompt from its second token on": lambda prompt: prompt[1:],
}
SHORT = (LATE_HOLE, TAKEN, TAKEN_ROTATED)


@unfed(
    "draft-prefill-short",
    "the prefill has a row too few, (it runs over, the last token's row): {value}",
    stages=("drafter.input_ids",),
    values=tuple(product(RUNS, ("is the first round's", *(f"never runs, {what}" for what in SHORT)))),
    fix=PREFILL_FIX,
)
@contextmanager
def _(loop: Loop, how: tuple[str, str]) -> Iterator[None]:
    """As EAGLE's does, whose rows hold the next token."""
    over, value = how
    taken, first = value.endswith((TAKEN, TAKEN_ROTATED)), [False]

    def prefill(inner: Callable[[Tensor], None], prompt: Tensor) -> None:
        inner(RUNS[over](prompt))
        first[:] = [True]

    def draft(inner: Callable[[], Tensor]) -> Tensor:
        state = loop.state
        if first[0] and value == "is the first round's":
            state.pending_taps = state.pending_taps.new_empty(2, 0)
        elif first[0] and value.endswith(LATE_HOLE):
            state.draft_length += 1
            in_slots(loop, state.draft_length)
        first[:] = [False]
        return inner()

    def commit(inner: Callable[[int], None], length: int) -> None:
        inner(length)
        if taken:
            loop.state.pending_taps = loop.state.pending_taps[1:]

    def places(inner: Callable[..., Tensor], committed: int, behind: int) -> Tensor:
        late = value.endswith(TAKEN_ROTATED) and loop.state.draft_length > 0
        return inner(committed, behind) + int(late)

    changes = (loop.prefill_drafter.around(prefill), loop.draft.around(draft), loop.commit.around(commit))
    with together((*changes, loop.positions.around(places))):
        yield
