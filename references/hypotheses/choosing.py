"""Other choices: greedy ids, the draft vocabulary, the rows that are read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from parity.references.hypotheses.catalogue import FUSED, MODELS, PARALLEL, Family, Mutation
from parity.references.hypotheses.inference import Margin
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.mutating import NotApplicable, rows_from, together


def _mapping(loop: Loop, value: None, change: Callable[[Tensor, Tensor], Tensor]) -> Mutation:
    """`change(ids, d2t)` takes draft ids to the target's vocabulary."""
    d2t, most = loop.drafter.d2t, loop.drafter.config.vocab_size - 1
    if not d2t.any():
        raise NotApplicable("draft and target vocabulary are the same")
    return loop.drafter.to_target.around(lambda inner, ids: change(ids, d2t).clamp(0, most))


vocabulary = Family(
    _mapping,
    stages=("drafter.draft_tokens",),
    fix="d2t is an offset: target id = draft id + d2t[draft id]",
    cost=2,
    drafters=FUSED,
)
vocabulary("d2t-absolute", "d2t: absolute", seen=("verl-SpeCo #67",))(lambda ids, d2t: d2t[ids])
vocabulary("d2t-missing", "d2t: missing", seen=("Automodel #2447",))(lambda ids, d2t: ids)
vocabulary("d2t-subtracted", "d2t: subtracted")(lambda ids, d2t: ids - d2t[ids])
vocabulary("d2t-twice", "d2t: added twice")(lambda ids, d2t: ids + 2 * d2t[ids])
vocabulary("d2t-plus-one", "d2t: plus one")(lambda ids, d2t: ids + d2t[ids] + 1)
vocabulary("d2t-row-before", "d2t: of the row before")(lambda ids, d2t: ids + d2t[(ids - 1).clamp(0)])
vocabulary("d2t-row-behind", "d2t: of the row behind")(lambda ids, d2t: ids + d2t[(ids + 1).clamp(max=len(d2t) - 1)])

round_offsets = vocabulary.part(drafters=PARALLEL)
round_offsets("d2t-of-first-draft", "d2t: of the round's first draft")(lambda ids, d2t: ids + d2t[ids[..., :1]])
round_offsets("d2t-of-last-draft", "d2t: of the round's last draft")(lambda ids, d2t: ids + d2t[ids[..., -1:]])
round_offsets("d2t-of-draft-before", "d2t: of the draft before")(lambda ids, d2t: ids + d2t[ids.roll(1, -1)])


def _tables(loop: Loop, entries: int, change: Callable[[Tensor, Tensor, int], Tensor]) -> Mutation:
    """`change(ids, d2t, entries)` reads a table of so many entries."""
    if entries >= len(loop.drafter.d2t):
        raise NotApplicable("the table is no longer than that")
    return _mapping(loop, None, lambda ids, d2t: change(ids, d2t, entries))


tables = vocabulary.part(_tables, values=tuple(2**bits for bits in range(6, 17)))
tables(
    "d2t-cut", "d2t: ids from {value} on have the offset of the one before", fix="a gather that reads all of the table"
)(lambda ids, d2t, entries: ids + d2t[ids.clamp(max=entries - 1)])

Choose = Callable[[Tensor], Tensor]


def _last(choose: Choose, logits: Tensor) -> Tensor:
    return logits.shape[-1] - 1 - choose(logits.flip(-1))


RULES: dict[str, Callable[[Choose, Tensor], Tensor]] = {
    "the last of equal bfloat16 ones": lambda choose, logits: _last(choose, logits.bfloat16().float()),
    "of bfloat16 logits": lambda choose, logits: choose(logits.bfloat16().float()),
    "the last of equal ones": _last,
    "second best": lambda choose, logits: logits.topk(2).indices[..., 1],
    "smallest": lambda choose, logits: choose(-logits),
}
"""Other argmaxes, of target and drafter alike."""

choice = Family()


@choice(
    "verify-tie-rule",
    "greedy ids: the argmax {value}",
    stages=("target.tokens", "drafter.draft_tokens", "verify.tokens"),
    values=RULES,
    fix="the argmax takes the first of equal values, over all shards",
    seen=("lattice #280",),
)
def _(loop: Loop, how: str) -> Mutation:
    return loop.greedy.around(RULES[how])


def runner_up(loop: Loop, margin: float, drafts: bool) -> Mutation:
    """The second best of `drafts`, or of the target's tokens, where it is within `margin` of the best."""
    drafting = [False]

    def draft(inner: Callable[[], Tensor]) -> Tensor:
        drafting[:] = [True]
        drafts = inner()
        drafting[:] = [False]
        return drafts

    def greedy(inner: Choose, logits: Tensor) -> Tensor:
        if drafting[0] != drafts:
            return inner(logits)
        best = logits.topk(2)
        return torch.where(best.values[..., 0] - best.values[..., 1] < margin, best.indices[..., 1], inner(logits))

    return together((loop.draft.around(draft), loop.greedy.around(greedy)))


NEAR = (float("inf"), *(2.0**exponent for exponent in range(-4, 3)))
EXACT = "an exact argmax of the {} logits: no approximate top-k, no sort of rounded values"
SECOND = "the argmax takes the second best where it is within {value:g} of the best"
choice(
    "draft-runner-up",
    f"drafts: {SECOND}",
    stages=("drafter.draft_tokens",),
    values=NEAR,
    infer=Margin("drafter.logits", "drafter.draft_tokens"),
    fix=EXACT.format("draft"),
    cost=2,
    drafters=MODELS,
)(partial(runner_up, drafts=True))
choice(
    "verify-runner-up",
    f"target: {SECOND}",
    stages=("target.tokens", "verify.tokens"),
    values=NEAR,
    infer=Margin("verify.logits", "verify.tokens"),
    fix=EXACT.format("target's"),
)(partial(runner_up, drafts=False))


def target_rows(loop: Loop, delta: int, rounds_only: bool) -> Mutation:
    """Each target row with the logits `delta` rows later."""

    def forward(inner: Callable[..., Tensor], ids: Tensor) -> Tensor:
        logits = inner(ids)
        if rounds_only and loop.state.length == 0:
            return logits
        return logits[torch.arange(len(logits)).add(delta).clamp(0, len(logits) - 1)]

    return loop.target.forward.around(forward)


ROWS_FIX = "the rows that verify reads: the last emitted token's, then the drafts'"
choice(
    "verify-row-everywhere",
    "target rows have the logits {value:+d} rows away",
    stages=("target.logits", "verify.logits"),
    values=(-1, 1),
    fix=ROWS_FIX,
)(partial(target_rows, rounds_only=False))
choice(
    "verify-row",
    "target rows have the logits {value:+d} rows away in verify rounds",
    stages=("verify.logits",),
    values=(-1, 1),
    fix=ROWS_FIX,
    cost=2,
)(partial(target_rows, rounds_only=True))


@choice(
    "verify-first-row-missing",
    "verify runs the drafts without the last emitted token in front",
    stages=("target.embed",),
    fix="the rows that verify runs: the last emitted token, then the drafts",
    cost=2,
)
def _(loop: Loop, value: None) -> Mutation:
    """What stands on its last row may be anything."""

    def forward(inner: Callable[..., Tensor], ids: Tensor) -> Tensor:
        return inner(ids if loop.state.length == 0 else torch.cat((ids[1:], ids[-1:])))

    def reset(inner: Callable[..., None], tap: Callable[[str, Tensor], Tensor]) -> None:
        def embedded(stage: str, value: Tensor) -> Tensor:
            verifying = stage == "target.embed" and loop.state.length > 0
            return tap(stage, rows_from(value[:-1], 0, len(value)) if verifying else value)

        inner(embedded)

    return together((loop.target.forward.around(forward), loop.target.reset.around(reset)))


reading = Family(
    stages=("drafter.pre_head_hidden",), fix="drafts are rows C - 1 to C + K - 2", cost=2, drafters=PARALLEL
)


@reading("drafter-row", "drafts are read {value:+d} rows from where they stand", values=(-1, 1))
def _(loop: Loop, delta: int) -> Mutation:
    """What stands outside the pass may be anything."""
    return loop.predicting.around(lambda inner, rows, committed: rows_from(rows, committed - 1 + delta, loop.k))


@reading(
    "drafter-rows-first", "drafts are read from row {value} of the pass on, however many are committed", values=(0, 1)
)
def _(loop: Loop, first: int) -> Mutation:
    """What stands outside the pass may be anything."""
    return loop.predicting.around(lambda inner, rows, committed: rows_from(rows, first, loop.k))


@reading(
    "drafter-rows-reversed",
    "draft rows from the last to the first",
    fix="drafts are rows C - 1 to C + K - 2, in this order",
)
def _(loop: Loop, value: None) -> Mutation:
    return loop.predicting.around(lambda inner, rows, committed: inner(rows, committed).flip(0))


handed = Family(
    stages=("drafter.draft_tokens",),
    fix="the K drafts of a buffer that begins with the last emitted token are those behind it",
    cost=2,
    drafters=PARALLEL,
)
HANDED: dict[str, Callable[[Tensor, int], Tensor]] = {
    "the last emitted token and all drafts but the last": lambda drafts, last: torch.cat(
        (drafts.new_tensor([last]), drafts[:-1])
    ),
    "all drafts but the first, the last one twice": lambda drafts, last: torch.cat((drafts[1:], drafts[-1:])),
    "one place on, the last one first": lambda drafts, last: drafts.roll(1),
    "one place back, the first one last": lambda drafts, last: drafts.roll(-1),
    "from the last to the first": lambda drafts, last: drafts.flip(0),
    "the first draft K times": lambda drafts, last: drafts[:1].expand_as(drafts),
    "the last emitted token K times": lambda drafts, last: torch.full_like(drafts, last),
}
"""From the drafts [K] and the last emitted token to what is handed over."""


@handed("draft-handed-over", "as drafts are handed over {value}", values=tuple(HANDED))
def _(loop: Loop, value: str) -> Mutation:
    def tap(inner: Callable[..., Tensor], stage: str, x: Tensor, *of: int) -> Tensor:
        if stage != "drafter.draft_tokens" or len(x) < 2:
            return inner(stage, x, *of)
        return inner(stage, HANDED[value](x, loop.state.emitted[-1]), *of)

    return loop.tap.around(tap)
