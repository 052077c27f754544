"""Caches of which a commit keeps too many rows, or too few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from parity.references.hypotheses.catalogue import Family, Mutation
from parity.references.hypotheses.lazily import Loop, Tensor
from parity.references.hypotheses.mutating import together, weighted
from parity.references.hypotheses.starting import sized

FIX = "rows and length after a round: those of the emitted tokens, in every layer"


@contextmanager
def uncropped(loop: Loop) -> Iterator[Callable[[], None]]:
    """The drafter's cache is not cropped, nor are the caches handed over, inside; what is yielded hands them over."""
    kept = loop.hand_over_caches
    with loop.state.cache.crop.around(lambda inner, length: None), kept.around(lambda inner: None):
        yield kept


def rolled_back(loop: Loop, which: str, how: Callable[[int, int], int]) -> Mutation:
    """The commit keeps `how(right, all)` rows, and continues behind those."""

    if which != "target":
        weighted(loop)

    def crop(inner: Callable[[int], None], right: int) -> None:
        inner(how(right, loop.target.rows(0)[0].shape[0]))

    def commit(inner: Callable[[int], None], emitted: int) -> None:
        state = loop.state
        with uncropped(loop) as hand_over:
            inner(emitted)
        state.draft_length = how(state.draft_length, state.cache.rows[0][0].shape[2])
        state.cache.crop(state.draft_length)
        hand_over()

    both = {"target": loop.target.crop.around(crop), "drafter": loop.commit.around(commit)}
    return both[which] if which in both else together(both.values())


def rolled_back_in_place(loop: Loop, which: str, how: Callable[[int, int], int]) -> Mutation:
    """The commit keeps `how(right, all)` rows; the next ones go where they should, behind rows of zeros if need be."""
    if which != "target":
        weighted(loop)
    sides = ("target", "drafter") if which == "both" else (which,)

    def crop(inner: Callable[[int], None], right: int, side: str) -> None:
        inner(how(right, held(loop, side)))

    def commit(inner: Callable[[int], None], emitted: int) -> None:
        crops = {"target": loop.target.crop, "drafter": loop.state.cache.crop}
        with together(crops[side].around(partial(crop, side=side)) for side in sides):
            inner(emitted)
        if "target" in sides:
            for layer in range(loop.target.config.num_hidden_layers):
                loop.target.load(layer, *(sized(x, loop.state.length) for x in loop.target.rows(layer)))
        if "drafter" in sides:
            in_slots(loop, loop.state.draft_length)

    return loop.commit.around(commit)


def in_slots(loop: Loop, many: int) -> None:
    """The drafter's cache with so many rows: the first ones, and rows of zeros where it has fewer."""
    rows = loop.state.cache.rows
    rows |= {layer: (_sized_slots(k, many), _sized_slots(v, many)) for layer, (k, v) in rows.items()}


def _sized_slots(x: Tensor, many: int) -> Tensor:
    """`sized` of the drafter's rows [B, G, S, D]."""
    return sized(x[0].transpose(0, 1), many).transpose(0, 1)[None]


def held(loop: Loop, side: str) -> int:
    """Rows in a side's cache."""
    if side == "target":
        return len(loop.target.rows(0)[0])
    rows = loop.state.cache.rows
    return int(rows[0][0].shape[2]) if rows else 0


IN_PLACE = ", whose next rows go where they should"
"""Of a cache: its next rows do not go behind those that are left in it."""


def either(loop: Loop, value: str, how: Callable[[int, int], int]) -> Mutation:
    """The commit keeps `how(right, all)` rows; the next ones go behind those, or where they should."""
    which, _, in_place = value.partition(IN_PLACE[0])
    return (rolled_back_in_place if in_place else rolled_back)(loop, which, how)


WHICH = ("drafter", "target", "both")
EITHER = tuple(f"{which}{end}" for which in WHICH for end in ("", IN_PLACE))


def rolled_back_beside(loop: Loop, value: str, delta: int | None) -> Mutation:
    """The commit keeps `delta` rows more than it should, None for all that a round rejected.

    So many more in each round, or of all of them (`once`): what was kept before does not count.
    """
    if value.endswith(IN_PLACE):
        return either(loop, value, lambda right, held: held if delta is None else max(min(right + delta, held), 0))
    which, _, once = value.partition(" ")
    beside = {"target": 0, "drafter": 0}

    def how(right: int, held: int, side: str) -> int:
        true = right - (beside[side] if side == "drafter" else 0)  # the drafter's rows are counted on from what it kept
        more = held - true - beside[side] if delta is None else delta
        kept = max(min(true + (0 if once else beside[side]) + more, held), 0)
        beside[side] = kept - true
        return kept

    def prefill(inner: Callable[[Tensor], None], prompt: Tensor) -> None:
        beside.update(target=0, drafter=0)
        inner(prompt)

    sides = ("target", "drafter") if which == "both" else (which,)
    return together(
        (loop.prefill.around(prefill), *(rolled_back(loop, side, partial(how, side=side)) for side in sides))
    )


COUNTED = tuple(f"{which}{end}" for which in WHICH for end in ("", " once", IN_PLACE))
"""Of which caches; in every round, once for all of them, or in none but what is handed over and lost."""

rollback = Family(stages=("kv.*",), values=COUNTED, fix=FIX, cost=2)
rollback("rollback-noop", "rollback of {value}: rejected rows stay", seen=("mlx-lm #1109", "NKIPy PR 63"))(
    partial(rolled_back_beside, delta=None)
)
rollback("rollback-too-far", "rollback of {value}: one accepted row goes as well", seen=("mlxcel #994",))(
    partial(rolled_back_beside, delta=-1)
)
rollback("rollback-too-near", "rollback of {value}: one rejected row stays")(partial(rolled_back_beside, delta=1))
rollback("rollback-reset", "rollback of {value}: the cache is cleared", values=EITHER, seen=("aprender #2014",))(
    partial(either, how=lambda right, held: 0)
)
