"""Caches with one row more than they should have: that of a token which ran once more, behind the prompt."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

from parity.families import FAMILIES
from parity.references.hypotheses.catalogue import ROWS, TAPPED, Family, Mutation
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.mutating import together
from parity.references.hypotheses.starting import begun, sized
from parity.references.hypotheses.taps import PAIR_FIX

SEED_FIX = "no pass of its own for the first token: the drafter's first round and the first verify bring its row"
FIRST, LAST, EMPTY = "the first token's row", "the prompt's last row once more", "an empty row"
SLOTS, RIGHT = "by their slots", "by their positions"

seeds = Family(fix=SEED_FIX, seen=("NKIPy example",), cost=2)


def _once(loop: Loop, step: Callable[[], None], late: bool) -> Mutation:
    """`step()` once for each prompt: before the prefill hands its caches over, or before the first draft (`late`)."""

    def first(inner: Callable[[], Any]) -> Any:
        if len(loop.state.emitted) == 1:
            step()
        return inner()

    return (loop.draft if late else loop.hand_over_caches).around(first)


def _alone(loop: Loop, ids: Tensor) -> None:
    """Run ids behind the target's cache and hand no stage over."""
    tap = loop.target.tap
    loop.target.watch(lambda stage, value: value)
    loop.target.forward(ids)
    loop.target.watch(tap)


def target_seed(loop: Loop, whose: str, late: bool) -> Mutation:
    """One more row behind the prompt, of a pass that hands no stage over, or of zeros."""
    prompts: list[Tensor] = []

    def prefill(inner: Callable[[Tensor], None], prompt: Tensor) -> None:
        prompts[:] = [prompt]
        inner(prompt)

    def seed() -> None:
        if whose == EMPTY:
            for layer in range(loop.target.config.num_hidden_layers):
                loop.target.load(layer, *(sized(x, len(x) + 1) for x in loop.target.rows(layer)))
        else:
            _alone(loop, torch.tensor(loop.state.emitted) if whose == FIRST else prompts[0][-1:])

    return together((loop.prefill.around(prefill), begun(loop, lambda: 1, counted=1), _once(loop, seed, late)))


Seeds = tuple[tuple[str, str, tuple[str, ...], bool], ...]
"""Of each: its id, when it happens, where it shows first, and whether that is before the first draft."""

PLACES = ("drafter.positions", "drafter.slots")
SEED = "target: {} {{value}} is committed behind the prompt as one more, and the next ones one further"
ON_TARGET: Seeds = (
    ("commit-seed-row", "with the prefill", ("kv.target.*",), False),
    ("commit-seed-row-late", "before the first draft", ("target.layers.*.q", "kv.target.*"), True),
)
for id, when, stages, late in ON_TARGET:
    declared = seeds(id, SEED.format(when), stages=stages, values=(FIRST, LAST, EMPTY))
    declared(partial(target_seed, late=late))


@seeds(
    "tap-first-token",
    "the first round drafts from the first token's own hidden, not from that of the row before it",
    stages=("drafter.taps",),
    fix=PAIR_FIX,
    drafters=TAPPED,
)
def _(loop: Loop, value: None) -> Mutation:
    """Of a pass of its own, whose row is not kept."""

    def seed() -> None:
        put_back = loop.target.keep()
        for layer in range(loop.target.config.num_hidden_layers):
            loop.target.load(layer, *(x[: loop.state.length] for x in loop.target.rows(layer)))
        _alone(loop, torch.tensor(loop.state.emitted))
        put_back()
        loop.state.pending_taps = loop.taps(0, 1)

    return _once(loop, seed, late=True)


def _rotated(loop: Loop, how: str, more: Callable[[], int]) -> list[Mutation]:
    """Drafter rows by their slots, or by positions that count `more()` rows fewer."""
    right = loop.positions.around(lambda inner, committed, masked: inner(committed, masked) - more())
    return [right] if how == RIGHT else []


def drafter_seed(loop: Loop, value: tuple[str, str], late: bool) -> Mutation:
    """The row that the first round feeds, in a pass of its own that hands no stage over, or a row of zeros."""
    whose, rotated = value
    more = [0]

    def prefill(inner: Callable[[Tensor], None], prompt: Tensor) -> None:
        more[:] = [0]
        inner(prompt)

    def seed() -> None:
        state = loop.state
        if whose == EMPTY:
            for layer, (k, v) in state.cache.rows.items():
                zeros = torch.zeros_like(k[:, :, :1])
                state.cache.rows[layer] = torch.cat((k, zeros), 2), torch.cat((v, zeros), 2)
        else:
            with loop.tap.around(lambda inner, stage, value, *rows: value):
                loop.rows(torch.tensor(state.emitted), state.pending_taps, behind=0)
        state.draft_length, more[:] = state.draft_length + 1, [1]

    parts = (loop.prefill_drafter.around(prefill), _once(loop, seed, late))
    return together((*parts, *_rotated(loop, rotated, lambda: more[0])))


SEED = (
    "drafter: {} one more row is committed behind the prompt, and the next ones one further; it is, and these rotate: "
)
ON_DRAFTER: Seeds = (
    ("commit-seed-row-drafter", "with the prefill", ("kv.drafter.*",), False),
    ("commit-seed-row-late-drafter", "before the first draft", (*PLACES, "kv.drafter.*"), True),
)
for id, when, stages, late in ON_DRAFTER:
    says = SEED.format(when) + "{value}"
    declared = seeds(id, says, stages=stages, values=tuple(product((FIRST, EMPTY), (SLOTS, RIGHT))), drafters=ROWS)
    declared(partial(drafter_seed, late=late))


@seeds(
    "input-prefill-too-long",
    "the drafter's prefill runs the first token's row as well, and the first round again; later rows rotate {value}",
    stages=("drafter.taps", "drafter.input_ids"),
    values=(SLOTS, RIGHT),
    drafters=ROWS,
)
def _(loop: Loop, rotated: str) -> Mutation:
    ahead = FAMILIES[loop.drafter.config.family].ahead

    def prefill(inner: Callable[[Tensor], None], prompt: Tensor) -> None:
        rows = torch.cat((prompt[ahead:], torch.tensor(loop.state.emitted)))
        loop.rows(rows, loop.taps(0, len(prompt)), behind=0)
        loop.state.draft_length = len(rows)

    again = _rotated(loop, rotated, lambda: int(loop.state.draft_length > 0))
    return together((loop.prefill_drafter.around(prefill), *again))
