"""Rows in later slots than their tokens: behind a row that was committed too often, or behind slots left empty."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import TypeVar

from parity.references.hypotheses.catalogue import Family, Fit, Mutation
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.mutating import NotApplicable, together
from parity.references.hypotheses.rope import at_positions

SEED_FIX = "no pass of its own for the first token: the drafter's first round and the first verify bring its row"
START_FIX = "the first slot and position of a verify round: the length of the target's cache"

Pair = tuple[Tensor, Tensor]
R = TypeVar("R")


def sized(x: Tensor, many: int) -> Tensor:
    """The first `many` rows of x [S, G, D], with rows of zeros behind them where it has fewer."""
    return torch.cat((x[:many], x.new_zeros(max(many - len(x), 0), *x.shape[1:])))


def handing_over(loop: Loop, side: str, count: Callable[[], int], whole: bool) -> Mutation:
    """A cache hands over its first `count()` rows, and that number as its length; it may hold more.

    Rows that are loaded replace those, or (`whole`) the cache with all that it holds behind them.
    """

    def cached(inner: Callable[..., Pair], name: str, k: Tensor, v: Tensor) -> Pair:
        if not name.startswith(f"kv.{side}."):
            return inner(name, k, v)
        given, tail = (sized(k, count()), sized(v, count())), (k[count() :], v[count() :])
        back = inner(name, *given)
        if whole and back[0] is not given[0]:
            return back
        return torch.cat((back[0], tail[0])), torch.cat((back[1], tail[1]))

    def tap(inner: Callable[..., Tensor], stage: str, value: Tensor) -> Tensor:
        return inner(stage, torch.tensor([count()]) if stage == f"kv.{side}.length" else value)

    return together((loop.cached.around(cached), loop.tap.around(tap)))


def begun(loop: Loop, delta: int, counted: int) -> Mutation:
    """Verify rounds write from the slot `delta` behind the emitted rows on, into a cache that nothing is cut off.

    Slots that were never written hold zeros. Behind a round as many rows as were emitted are handed over, and `counted`
    more.
    """

    def draft(inner: Callable[[], Tensor]) -> Tensor:
        drafts = inner()
        for layer in range(loop.target.config.num_hidden_layers):
            k, v = (sized(x, loop.state.length + delta) for x in loop.target.rows(layer))
            loop.target.load(layer, k, v)
        return drafts

    def count() -> int:
        prefilled = len(loop.state.emitted) == 1
        return len(loop.target.rows(0)[0]) if prefilled else loop.state.length + counted

    kept = loop.target.crop.around(lambda inner, length: None)
    return together((kept, loop.draft.around(draft), handing_over(loop, "target", count, whole=False)))


starts = Family(stages=("target.layers.*.q",), values=(1, -1, 2, -2), fix=START_FIX, cost=2)


def started(loop: Loop, delta: int, rotated: bool) -> Mutation:
    """Verify rows written `delta` slots off, and rotated by their slots or by their own positions."""
    if not delta:
        raise NotApplicable("no slot off")
    if rotated:
        return begun(loop, int(delta), counted=0)
    own = at_positions(loop, "target", lambda places: places - places[:, :1] + loop.state.length)
    return together((begun(loop, int(delta), counted=0), own))


starts(
    "verify-start",
    "target: the rows of a verify round are written and rotated {value:+d} slots off",
    fit=Fit(-8, 64, clean=0, whole=True),
    seen=("NKIPy example",),
)(partial(started, rotated=True))
starts(
    "verify-slot",
    "target: the rows of a verify round are written {value:+d} slots off, and rotated right",
    stages=("target.layers.*.attn_out", "kv.target.*"),
)(partial(started, rotated=False))

FIRST, LAST, EMPTY = "the first token's", "the prompt's last token's", "an empty one"
PREFILL, ROUND, WITHIN = "behind the prefill", "before the first draft", "in the prefill's own pass"

seeds = Family(fix=SEED_FIX, seen=("NKIPy example",), cost=2)


def _once(loop: Loop, when: str, step: Callable[[], None]) -> Mutation:
    """`step()` once for each prompt: before the prefill hands its caches over, or before the first draft."""

    def first(inner: Callable[[], R]) -> R:
        if len(loop.state.emitted) == 1:
            step()
        return inner()

    return (loop.hand_over_caches if when == PREFILL else loop.draft).around(first)


@seeds(
    "commit-seed-row",
    "target: one more row is committed behind the prompt, the next ones are written and rotated one further; whose, "
    "when, and the taps that the drafter starts from: {value}",
    stages=("kv.target.*", "target.layers.*.q", "drafter.taps"),
    values=(
        *product((FIRST, LAST), (PREFILL, ROUND), ("the prompt's", "its own")),
        *product((EMPTY,), (PREFILL, ROUND), ("the prompt's",)),
    ),
)
def _(loop: Loop, value: tuple[str, str, str]) -> Mutation:
    """Its pass hands no stage over."""
    whose, when, taps = value
    prompts: list[Tensor] = []

    def prefill(inner: Callable[[Tensor], None], prompt: Tensor) -> None:
        prompts[:] = [prompt]
        inner(prompt)

    def seed() -> None:
        target, tap = loop.target, loop.target.tap
        if whose == EMPTY:
            for layer in range(target.config.num_hidden_layers):
                target.load(layer, *(sized(x, len(x) + 1) for x in target.rows(layer)))
            return
        target.watch(lambda stage, value: value)
        target.forward(torch.tensor(loop.state.emitted) if whose == FIRST else prompts[0][-1:])
        target.watch(tap)
        if taps == "its own":
            loop.state.pending_taps = loop.taps(0, 1)

    return together((loop.prefill.around(prefill), begun(loop, 1, 1), _once(loop, when, seed)))


@seeds(
    "commit-seed-row-drafter",
    "drafter: one more row is committed behind the prompt, the next ones are written one further; whose, when, and how "
    "these rotate: {value}",
    stages=("kv.drafter.*", "drafter.taps", "drafter.positions", "drafter.slots"),
    values=product((FIRST, EMPTY), (PREFILL, ROUND, WITHIN), ("by their slots", "right")),
)
def _(loop: Loop, value: tuple[str, str, str]) -> Mutation:
    """The first token's row is the one that the first round feeds again: with the taps of the prompt's last row."""
    whose, when, rotated = value
    if (whose, when) == (EMPTY, WITHIN):
        raise NotApplicable("a pass writes no empty row")
    more = [0]

    def prefill(inner: Callable[[Tensor], None], prompt: Tensor) -> None:
        more[:] = [0]
        if when == WITHIN:
            loop.rows(torch.cat((prompt[1:], torch.tensor(loop.state.emitted))), loop.taps(0, len(prompt)), masked=0)
            loop.state.draft_length, more[:] = len(prompt), [1]
        else:
            inner(prompt)

    def seed() -> None:
        state = loop.state
        if when == WITHIN:
            return
        if whose == EMPTY:
            for layer, (k, v) in state.cache.rows.items():
                zeros = torch.zeros_like(k[:, :, :1])
                state.cache.rows[layer] = torch.cat((k, zeros), 2), torch.cat((v, zeros), 2)
        else:
            with loop.tap.around(lambda inner, stage, value: value):
                loop.rows(torch.tensor(state.emitted), state.pending_taps, masked=0)
        state.draft_length, more[:] = state.draft_length + 1, [1]

    right = loop.positions.around(lambda inner, committed, masked: inner(committed, masked) - more[0])
    parts = [loop.prefill_drafter.around(prefill), _once(loop, when, seed)]
    return together([*parts, right] if rotated == "right" else parts)
