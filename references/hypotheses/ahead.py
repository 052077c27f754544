"""Rounds that begin before the round before them is known: a loop that sends work ahead of what it reads."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from parity.references.hypotheses.catalogue import PARALLEL, ROWS, Family, Mutation
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.masks import masking
from parity.references.hypotheses.mutating import together
from parity.references.hypotheses.starting import begun

CLASS = ("class of vLLM #30122",)
FIX = "a round that is sent before the one before it is read takes tokens and lengths from the device, not the host"
CHOICES = ("drafter.draft_tokens", "verify.tokens", "accept.length", "accept.emitted")

WHOSE = ("the drafter's rows", "the target's", "both models'")
"""Whose round begins too early."""

early = Family(stages=("drafter.input_ids", "target.embed"), fix=FIX, seen=CLASS, cost=2)


def unread(loop: Loop, whose: str, held: Callable[[Tensor], Tensor]) -> Mutation:
    """From the second round on the drafter's committed rows, or the last emitted token of verify, are other ids.

    `held(tokens)` gives, of ids that came out in a round, those that stand in their place.
    """

    def ids(inner: Callable[..., Tensor], committed: Tensor, behind: int) -> Tensor:
        return inner(held(committed) if loop.state.round > 1 else committed, behind)

    def forward(inner: Callable[..., Tensor], rows: Tensor) -> Tensor:
        return inner(torch.cat((held(rows[:1]), rows[1:])) if loop.state.round > 1 else rows)

    drafter, target = loop.ids.around(ids), loop.target.forward.around(forward)
    return together({WHOSE[0]: (drafter,), WHOSE[1]: (target,)}.get(whose, (drafter, target)))


@early(
    "input-not-filled-in",
    "from the second round on, {value} hold the placeholder where the tokens of the round before belong",
    values=WHOSE,
    drafters=PARALLEL,
)
def _(loop: Loop, whose: str) -> Mutation:
    placeholder = loop.drafter.config.placeholder_id
    return unread(loop, whose, lambda ids: torch.full_like(ids, placeholder))


@early(
    "input-round-late",
    "from the second round on, {value} hold the tokens that the round before began with",
    values=WHOSE,
    drafters=ROWS,
)
def _(loop: Loop, whose: str) -> Mutation:
    chosen: list[list[int]] = []

    def matched(inner: Callable[..., int], drafts: Tensor, tokens: Tensor) -> int:
        chosen.append(tokens.tolist())
        return inner(drafts, tokens)

    def prefill(inner: Callable[..., None], prompt: Tensor) -> None:
        inner(prompt)
        chosen[:] = [loop.state.emitted[:1]]

    def held(ids: Tensor) -> Tensor:
        late = chosen[loop.state.round - 2][: len(ids)]
        return torch.cat((torch.tensor(late, dtype=ids.dtype), ids[len(late) :]))

    return together((loop.prefill.around(prefill), loop.matched.around(matched), unread(loop, whose, held)))


class Lengths:
    """The rows that a side's cache has where a round begins, of the true sequence and as a round late knows them."""

    def __init__(self, length: Callable[[], int]):
        self.length, self.known = length, list[tuple[int, int, int]]()

    def begin(self, round_: int) -> int:
        """How many rows further back than it should a round begins."""
        true = self.length()
        if round_ == 1:
            self.known = [(true, true, true)]
        elif len(self.known) < round_:
            before, given, carried = self.known[-1]
            self.known.append((true, carried, given + true - before))
        return self.known[round_ - 1][1] - true


starting = Family(stages=("target.layers.*.q", "target.layers.*.attn_out"), fix=FIX, seen=CLASS, cost=2)


@starting("verify-start-late", "target: a verify round begins at the length that the round before began with")
def _(loop: Loop, value: None) -> Mutation:
    lengths = Lengths(lambda: loop.state.length)
    return begun(loop, lambda: lengths.begin(loop.state.round), counted=0)


SPANS = tuple(product(("target", "drafter", "both"), ("the prompt's", 1, 2, 3, 4)))


def ended(loop: Loop, value: tuple[str, int | str]) -> Mutation:
    """What a row of a round sees ends with the K + 1 rows behind a length that is known some rounds late."""
    whose, late = value
    lengths: dict[str, list[int]] = {}

    def bounded(side: str, inner: Callable[[], int]) -> Mutation:
        def seen(mask: Tensor, distance: Tensor, verifying: bool) -> Tensor:
            if not loop.state.round:
                return mask
            known, keys = lengths.setdefault(side, []), torch.arange(mask.shape[-1])
            if loop.state.round == 1:
                known.clear()
            if len(known) < loop.state.round:
                known.append(inner())
            behind = 0 if isinstance(late, str) else max(loop.state.round - 1 - late, 0)
            return mask & (keys < known[behind] + loop.most + 1)

        return masking(loop, "all", seen, side)

    sides = {"target": lambda: loop.state.length, "drafter": lambda: loop.state.draft_length}
    return together(bounded(side, inner) for side, inner in sides.items() if whose in (side, "both"))


early(
    "attn-span-late",
    "(side, rounds late): {value}: attention of a round ends K + 1 rows behind a length that was read too early",
    stages=("target.layers.*.attn_out", "drafter.layers.*.attn_out"),
    values=SPANS,
    drafters=ROWS,
)(ended)

telling = Family(stages=CHOICES, fix="a round's results are read when they are there", cost=2)


@telling(
    "told-late",
    "the host reads of a round {value} of the round before",
    values=("the tokens, with its own count,", "tokens and count"),
)
def _(loop: Loop, value: str) -> Mutation:
    told: dict[tuple[str, int], Tensor] = {}

    def prefill(inner: Callable[..., None], prompt: Tensor) -> None:
        told.clear()
        inner(prompt)

    def late(stage: str, first: int, given: Tensor) -> Tensor:
        """What the round before told there, as many rows as this one has."""
        before = told.get((stage, first), given[:0])[: len(given)]
        return torch.cat((before, torch.zeros_like(given[len(before) :])))

    def tap(inner: Callable[..., Tensor], stage: str, given: Tensor, *rows: int) -> Tensor:
        if stage not in CHOICES or (stage == "accept.length" and value.startswith("the tokens")):
            return inner(stage, given, *rows)
        first = rows[0] if rows else 0
        shown = late("emitted now" if stage == "accept.emitted" else stage, first, given)
        if stage == "verify.tokens":
            told["emitted now", 0] = shown
        told[stage, first] = given
        back = inner(stage, shown, *rows)
        return given if torch.equal(back, shown) else back

    return together((loop.prefill.around(prefill), loop.tap.around(tap)))
