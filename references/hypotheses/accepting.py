"""Other rules of acceptance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from parity.references.hypotheses.catalogue import FUSED, Family, Mutation
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.mutating import NotApplicable, together

ACCEPTED = ("accept.length", "accept.emitted")


Count = Callable[[int, Tensor, Tensor], Tensor | int]


def _matching(loop: Loop, value: str, change: Count) -> Mutation:
    """`change(matched, drafts, tokens)` counts the matches of drafts [K] and tokens [K+1] another way.

    What stands for the drafts in what a round emits, `value`, is the same where the count is right.
    """

    def emission(inner: Callable[..., list[int]], drafts: Tensor, tokens: Tensor, matched: int) -> list[int]:
        ids = inner(drafts, tokens, matched)
        return drafts[:matched].tolist() + ids[matched:] if value == "drafts" else ids

    counted = loop.matched.around(lambda inner, drafts, tokens: int(change(inner(drafts, tokens), drafts, tokens)))
    return together((counted, loop.emission.around(emission)))


matching = Family(
    _matching,
    stages=ACCEPTED,
    values=("tokens", "drafts"),
    fix="accepted drafts are those before the first mismatch, each against the row of the token before it",
    cost=2,
)
COUNTED = "matched drafts are counted: {}; the {{value}} up to there are emitted"
matching("accept-past-mismatch", COUNTED.format("past the mismatch"), seen=("vLLM #2658",))(
    lambda matched, drafts, tokens: (drafts == tokens[:-1]).sum()
)
matching("accept-last-match", COUNTED.format("up to the last match"), seen=("vLLM #2658",))(
    lambda matched, drafts, tokens: ((drafts == tokens[:-1]) * torch.arange(1, len(tokens))).max()
)
matching("accept-none", COUNTED.format("none"))(lambda matched, drafts, tokens: 0)
matching("accept-all", COUNTED.format("all"), seen=("vLLM #2658",))(lambda matched, drafts, tokens: len(drafts))
matching("accept-one-fewer", COUNTED.format("one fewer"))(lambda matched, drafts, tokens: max(matched - 1, 0))
matching("accept-one-more", COUNTED.format("one more"))(lambda matched, drafts, tokens: min(matched + 1, len(drafts)))
matching("accept-next-row", COUNTED.format("against the next row"))(
    lambda matched, drafts, tokens: (drafts == tokens[1:]).long().cumprod(0).sum()
)
matching("accept-first-unchecked", COUNTED.format("from the second on, the first as if it matched"))(
    lambda matched, drafts, tokens: 1 + (drafts == tokens[:-1])[1:].long().cumprod(0).sum() if len(drafts) else 0
)


comparing = Family(stages=ACCEPTED, fix="this round's drafts are compared, in the target's ids: behind d2t", cost=2)


@comparing("accept-unmapped", "drafts are compared by their draft ids, before d2t", drafters=FUSED)
def _(loop: Loop, value: None) -> Mutation:
    d2t = loop.drafter.d2t
    if not d2t.any():
        raise NotApplicable("draft and target vocabulary are the same")
    ids = torch.arange(len(d2t))
    unmapped = torch.full((loop.drafter.config.vocab_size,), -1).scatter(0, ids + d2t, ids)
    return loop.matched.around(lambda inner, drafts, tokens: inner(unmapped[drafts], tokens))


@comparing("accept-drafts-late", "the drafts of the round before are compared")
def _(loop: Loop, value: None) -> Mutation:
    held: list[Tensor] = []

    def prefill(inner: Callable[..., None], prompt: Tensor) -> None:
        held.clear()
        inner(prompt)

    def matched(inner: Callable[..., int], drafts: Tensor, tokens: Tensor) -> int:
        late = held[-1][: len(drafts)] if held else drafts[:0]
        held.append(drafts)
        return inner(torch.cat((late, torch.full_like(drafts[len(late) :], -1))), tokens)

    return together((loop.prefill.around(prefill), loop.matched.around(matched)))


def _emitting(loop: Loop, value: None, change: Callable[[list[int], list[int], list[int], int], list[int]]) -> Mutation:
    """`change(ids, drafts, tokens, matched)` is what a round emits; never nothing, or it would not end."""

    def emission(inner: Callable[..., list[int]], drafts: Tensor, tokens: Tensor, matched: int) -> list[int]:
        return change(inner(drafts, tokens, matched), drafts.tolist(), tokens.tolist(), matched)

    return loop.emission.around(emission)


emitting = Family(
    _emitting, stages=ACCEPTED, fix="a round emits the accepted drafts and the target's own token behind them", cost=2
)
emitting("accept-rejected-emitted", "a round emits: the rejected draft")(
    lambda ids, drafts, tokens, matched: drafts[: matched + 1] if matched < len(drafts) else ids
)
emitting("accept-one-late", "a round emits: the rejected draft as well", seen=("openvino.genai #4190",))(
    lambda ids, drafts, tokens, matched: drafts[: matched + 1] + ids[-1:]
)
emitting("accept-token-late", "a round emits: one token late", seen=("openvino.genai #4190",))(
    lambda ids, drafts, tokens, matched: tokens[: matched + 2]
)
emitting("accept-bonus-missing", "a round emits: no bonus", seen=("vLLM #17908",))(
    lambda ids, drafts, tokens, matched: ids[:-1] or ids
)
emitting("accept-bonus-missing-full", "a round emits: no bonus behind K drafts")(
    lambda ids, drafts, tokens, matched: ids[:-1] if matched == len(drafts) else ids
)
emitting("accept-bonus-last-row", "a round emits: the bonus of the last row")(
    lambda ids, drafts, tokens, matched: [*ids[:-1], tokens[-1]]
)
emitting("accept-bonus-first-row", "a round emits: the bonus of the first row")(
    lambda ids, drafts, tokens, matched: [*ids[:-1], tokens[0]]
)
emitting("accept-bonus-row-before", "a round emits: the bonus of the row before")(
    lambda ids, drafts, tokens, matched: [*ids[:-1], tokens[max(matched - 1, 0)]]
)
emitting("accept-bonus-row-behind", "a round emits: the bonus of the row behind")(
    lambda ids, drafts, tokens, matched: [*ids[:-1], tokens[min(matched + 1, len(drafts))]]
)
emitting("accept-bonus-clamped", "a round emits: behind K drafts, the bonus of the row before")(
    lambda ids, drafts, tokens, matched: [*ids[:-1], tokens[max(min(matched, len(drafts) - 1), 0)]]
)
emitting("accept-bonus-twice", "a round emits: the last token twice")(
    lambda ids, drafts, tokens, matched: ids + ids[-1:]
)

limited = Family(stages=ACCEPTED, cost=2)
"""Behind what is emitted: a limit of K - 1 is no bonus behind K drafts, and the more usual cause is said first."""


@limited(
    "accept-at-most",
    "a round accepts {value} drafts at the most, however many agree",
    values=(1, 2, 3, 4, 5, 6),
    fix="accepted drafts are those before the first mismatch, as many as there are",
)
def _(loop: Loop, value: int) -> Mutation:
    return loop.matched.around(lambda inner, drafts, tokens: min(inner(drafts, tokens), value))


cutting = Family(
    stages=ACCEPTED,
    fix="cut what a round emits behind EOS and at the budget, and count what is left",
    seen=("NKIPy PR 63", "vLLM #56101"),
    cost=2,
)


@cutting("accept-budget-ignored", "the last round is not cut at the token budget")
def _(loop: Loop, value: None) -> Mutation:
    return loop.within_budget.around(lambda inner, ids: ids)


@cutting("accept-budget-early", "the budget cuts one token early")
def _(loop: Loop, value: None) -> Mutation:
    return loop.within_budget.around(
        lambda inner, ids: inner(ids)[: max(loop.state.budget - len(loop.state.emitted) - 1, 1)]
    )


@cutting("accept-eos-ignored", "tokens behind EOS are emitted")
def _(loop: Loop, value: None) -> Mutation:
    return loop.until_eos.around(lambda inner, ids: ids)


@cutting("accept-eos-dropped", "EOS itself is not emitted")
def _(loop: Loop, value: None) -> Mutation:
    return loop.until_eos.around(
        lambda inner, ids: [token for token in inner(ids) if token not in loop.eos] or inner(ids)
    )


@contextmanager
def shown(loop: Loop, value: None, count: Callable[[int, int, int], int]) -> Iterator[None]:
    """The accepted count is handed over as `count(emitted, emitted before the cut, K + 1)`; what is emitted stays."""
    uncut = [0]

    def emission(inner: Callable[..., list[int]], drafts: Tensor, tokens: Tensor, matched: int) -> list[int]:
        ids = inner(drafts, tokens, matched)
        uncut[:] = [len(ids)]
        return ids

    def tap(inner: Callable[..., Tensor], stage: str, value: Tensor, *rows: int) -> Tensor:
        if stage != "accept.length":
            return inner(stage, value, *rows)
        given = torch.full_like(value, count(int(value[0]), uncut[0], loop.k + 1))
        back = inner(stage, given)
        return value if torch.equal(back, given) else back

    with loop.emission.around(emission), loop.tap.around(tap):
        yield


showing = Family(
    stages=ACCEPTED[:1],
    fix="acceptance length counts the tokens that were really emitted, the bonus among them",
    cost=2,
)
SHOWN = "the accepted count is shown {}; the tokens are right"
showing("report-bonus", SHOWN.format("without the bonus"), seen=("vLLM #17908",))(
    partial(shown, count=lambda emitted, uncut, rows: emitted - 1)
)
showing("report-truncated-step", SHOWN.format("uncut"), seen=("NKIPy PR 63", "vLLM #56101"))(
    partial(shown, count=lambda emitted, uncut, rows: uncut)
)
showing("report-uncut-drafts", SHOWN.format("uncut, without the bonus"))(
    partial(shown, count=lambda emitted, uncut, rows: uncut - 1)
)
showing("report-drafted", SHOWN.format("K + 1 whatever came"))(partial(shown, count=lambda emitted, uncut, rows: rows))
