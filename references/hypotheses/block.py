"""Other blocks of masks: what stands in them, what they see, where they sit, how long they are, how they are read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

from parity.references.hypotheses.catalogue import DENOISING, Family, Mutation
from parity.references.hypotheses.inference import placeholder
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.mutating import NotApplicable, rows_from, together
from parity.references.points import replaced

IDS_FIX = "the block: the last emitted token, then K times mask_token_id of dflash_config"
SIGHT_FIX = "no row of the block is hidden from another, and none of the context: is_causal is false"
READ_FIX = "mask i drafts the token at its own position: nothing is shifted, and the first row drafts nothing"
PLACE_FIX = "the block's rows sit behind the context's, one position and one slot each"
CONTEXT_FIX = "a round writes the context rows of the tokens that came out; the block is dropped"

block = Family(drafters=DENOISING, cost=2)
ids = block.part(stages=("drafter.input_ids",), fix=IDS_FIX)


@ids("block-mask-id", "masks hold the id {value}", values=("pad", "eos", "bos", 0), infer=placeholder)
def _(loop: Loop, value: int | str) -> Mutation:
    target = loop.target.config
    named = {"pad": target.pad_token_id, "bos": target.bos_token_id, "eos": loop.eos[0] if loop.eos else None}
    token = named[value] if isinstance(value, str) else value
    if token is None or not 0 <= token < loop.drafter.config.vocab_size:
        raise NotApplicable(f"id {token}")
    return loop.ids.around(lambda inner, rows: torch.cat((inner(rows)[:1], torch.full((rows - 1,), int(token)))))


FIRST: dict[str, Callable[[list[int], list[int]], list[int]]] = {
    "a mask": lambda known, drafts: [],
    "the token before the last": lambda known, drafts: known[-2:-1],
    "the last draft of the round before": lambda known, drafts: drafts[-1:],
    "the first draft of the round before": lambda known, drafts: drafts[:1],
    "the prompt's last token": lambda known, drafts: known[:1],
}
"""Of the known tokens from the prompt's last one on, and the drafts of the round before."""


@ids("block-first-token", "the block begins with {value}, not with the last emitted token", values=FIRST)
def _(loop: Loop, value: str) -> Mutation:
    def other(inner: Callable[[int], Tensor], rows: int, drafts: list[int]) -> Tensor:
        true = inner(rows)
        known = [*loop.state.prompt.tolist()[-1:], *loop.state.emitted]
        first = FIRST[value](known, drafts) or (true[1:2] if value == "a mask" else true[:1]).tolist()
        return torch.cat((torch.tensor(first), true[1:]))

    return _with_drafts(loop, other)


@ids(
    "block-masks-known",
    "masks hold {value}",
    values=("the last emitted token", "the drafts of the round before", "the tokens emitted last"),
)
def _(loop: Loop, value: str) -> Mutation:
    def other(inner: Callable[[int], Tensor], rows: int, drafts: list[int]) -> Tensor:
        true, emitted = inner(rows), loop.state.emitted
        behind = {
            "the last emitted token": emitted[-1:] * (rows - 1),
            "the drafts of the round before": drafts,
            "the tokens emitted last": emitted[-rows:-1],
        }[value]
        return torch.cat((true[:1], torch.tensor(behind, dtype=torch.long), true[1 + len(behind) :]))

    return _with_drafts(loop, other)


def _with_drafts(loop: Loop, change: Callable[[Callable[[int], Tensor], int, list[int]], Tensor]) -> Mutation:
    """`change(ids, rows, drafts)` gives a block's ids [K + 1], of the drafts of the round before."""
    before: list[int] = []

    def draft(inner: Callable[[], Tensor]) -> Tensor:
        drafts = inner()
        before[:] = drafts.tolist()
        return drafts

    def prefill(inner: Callable[[Tensor], None], prompt: Tensor) -> None:
        before.clear()
        inner(prompt)

    given = loop.ids.around(lambda inner, rows: change(inner, rows, list(before)))
    return together((loop.prefill.around(prefill), loop.draft.around(draft), given))


@block(
    "block-length",
    "the block has other masks than K, (how many, what is shown): {value}",
    stages=("drafter.input_ids", "drafter.layers.0.attn_out"),
    values=tuple(product(("to block_size", "one more"), ("the first rows", "all rows"))),
    fix="the block has K masks: each sees all others",
)
def _(loop: Loop, value: tuple[str, str]) -> Mutation:
    """Only the first K of them draft."""
    many, shown = value
    k, most = loop.k, loop.drafter.config.max_drafts
    longer = k + 1 if many == "one more" else (most or 0)
    if longer <= k:
        raise NotApplicable(f"a block of {longer} masks")
    drafting = [False]

    def tap(inner: Callable[..., Tensor], stage: str, x: Tensor, *rows: int) -> Tensor:
        surplus = longer - k
        in_block = stage in ("drafter.input_ids", "drafter.positions", "drafter.slots") or ".layers." in stage
        if not (drafting[0] and in_block and stage.startswith("drafter.") and shown == "the first rows"):
            return inner(stage, x, *rows)
        return torch.cat((inner(stage, x[:-surplus], *rows), x[-surplus:]))

    def draft(inner: Callable[[], Tensor]) -> Tensor:
        drafting[:] = [True]
        try:
            with replaced(loop, "k", longer):
                return inner()
        finally:
            drafting[:] = [False]

    reading = loop.predicting.around(lambda inner, rows, known: inner(rows, known)[:k])
    return together((loop.draft.around(draft), loop.tap.around(tap), reading))


def _sight(loop: Loop, value: None, change: Callable[..., Tensor]) -> Mutation:
    """`change(seen, keys, rows, start, C)` says what the block's rows see, bool [K + 1, S].

    `keys` [S] count up from 0, `rows` [K + 1, 1] from the block's first row, whose slot is `start`.
    """

    def mask(inner: Callable[..., Tensor], slots: Tensor, committed: int) -> Tensor:
        seen, start = inner(slots, committed), int(slots[0])
        return change(seen, torch.arange(seen.shape[1]), slots[:, None] - start, start, committed)

    return loop.mask.around(mask)


sight = Family(_sight, drafters=DENOISING, cost=2, stages=("drafter.layers.0.attn_out",), fix=SIGHT_FIX)
SEES = "a row of the block sees: "
sight("block-causal", SEES + "no row behind it", seen=("vLLM's causal default", "class of SGLang's DFlash"))(
    lambda seen, keys, rows, start, committed: seen & (keys <= start + rows)
)
sight("block-context-blind", SEES + "the block alone")(
    lambda seen, keys, rows, start, committed: seen & (keys >= start)
)
sight("block-context-alone", SEES + "the context alone")(
    lambda seen, keys, rows, start, committed: seen & (keys < start)
)
sight("block-rows-apart", SEES + "the context and itself")(
    lambda seen, keys, rows, start, committed: seen & ((keys < start) | (keys == start + rows))
)
sight("block-masks-apart", SEES + "the context, the first row and itself")(
    lambda seen, keys, rows, start, committed: seen & ((keys <= start) | (keys == start + rows))
)
sight("block-not-itself", SEES + "all but itself")(
    lambda seen, keys, rows, start, committed: seen & (keys != start + rows)
)
sight("block-first-hidden", SEES + "all but the first row")(
    lambda seen, keys, rows, start, committed: seen & ((keys != start) | (rows == 0))
)
sight("block-masks-hidden", SEES + "no mask")(lambda seen, keys, rows, start, committed: seen & (keys <= start))
sight("block-first-causal", SEES + "all, but the first row no mask")(
    lambda seen, keys, rows, start, committed: seen & ((rows > 0) | (keys <= start))
)
sight("block-newest-context-hidden", SEES + "no context of its own round")(
    lambda seen, keys, rows, start, committed: seen & ((keys < start - committed) | (keys >= start))
)
sight("block-last-context-hidden", SEES + "not the newest row of the context")(
    lambda seen, keys, rows, start, committed: seen & (keys != start - 1)
)
sight("block-last-mask-hidden", SEES + "not the last mask")(
    lambda seen, keys, rows, start, committed: seen & (keys < seen.shape[1] - 1)
)


@block(
    "block-prompt-alone",
    "a row of the block sees: of the context the prompt's alone",
    stages=("drafter.layers.0.attn_out",),
    fix=CONTEXT_FIX,
)
def _(loop: Loop, value: None) -> Mutation:
    return _sight(
        loop,
        value,
        lambda seen, keys, rows, start, committed: seen & ((keys < len(loop.state.prompt)) | (keys >= start)),
    )


reading = block.part(stages=("drafter.pre_head_hidden",), fix=READ_FIX)


@reading("block-row", "drafts are read {value:+d} rows from where they stand", values=(-1, 1))
def _(loop: Loop, delta: int) -> Mutation:
    """What stands outside the block may be anything."""
    return loop.predicting.around(lambda inner, rows, known: rows_from(rows, known + delta, len(rows) - known))


@reading("block-rows-reversed", "draft rows from the last to the first")
def _(loop: Loop, value: None) -> Mutation:
    return loop.predicting.around(lambda inner, rows, known: inner(rows, known).flip(0))


WORDS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "the first row's": lambda true, number, context: true[context].expand(len(true)),
    "the first mask's": lambda true, number, context: true[context + 1].expand(len(true)),
    "counted from 0": lambda true, number, context: number,
}
"""Of a pass' positions (or slots), the numbers of its rows from the first one on that is moved, and C."""


def _moved(loop: Loop, value: int | str, rows: str, of: str = "positions") -> Mutation:
    """Positions (or slots) moved by so many, or in a word: of masks or of context rows."""

    def move(inner: Callable[..., Tensor], context: int, block: int) -> Tensor:
        true, number = inner(context, block), torch.arange(context + block)
        wanted = number > context if rows == "masks" else number < context
        if not wanted.any():
            return true
        apart = number - int(number[wanted][0])
        known = WORDS[value](true, apart, context) if isinstance(value, str) else true + value
        return torch.where(wanted, known, true).clamp(0)

    return (loop.slots if of == "slots" else loop.positions).around(move)


for of in ("positions", "slots"):
    places = block.part(stages=(f"drafter.{of}",), fix=PLACE_FIX)
    places(
        f"block-mask-{of}",
        f"{of} of masks are {{value}} (a number: so many off)",
        values=(-1, 1, "the first row's", "the first mask's", "counted from 0"),
    )(partial(_moved, rows="masks", of=of))

block(
    "block-context-positions",
    "positions of context rows are {value} (a number: so many off)",
    stages=("drafter.positions",),
    values=(1, -1, "counted from 0"),
    fix=PLACE_FIX,
    cost=1,
)(partial(_moved, rows="context"))
