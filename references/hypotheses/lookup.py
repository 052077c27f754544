"""Other ways of looking up an n-gram: other lengths, other places, another text, other tokens behind the place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from parity.references.hypotheses.catalogue import LOOKUP, Family, Mutation
from parity.references.hypotheses.lazily import Loop, Tensor
from parity.references.hypotheses.mutating import NotApplicable, together

if TYPE_CHECKING:
    from parity.references.ngram import NGram
from parity.references.hypotheses.starting import handing_over

ORDER_FIX = "the longest n-gram that has a place counts, and of its places the earliest"
LENGTHS_FIX = "prompt_lookup_max and prompt_lookup_min of the config, both included"
DRAFTS_FIX = "drafts are the tokens behind the n-gram's place, K of them or as many as there are"
TEXT_FIX = "the text is prompt and answer, the newest token included and rejected drafts not"

lookup = Family(stages=("drafter.draft_tokens",), drafters=LOOKUP)

Text = list[int]
Lengths = tuple[int, int]
"""The longest n-gram and the shortest."""


def places_of(text: Text, size: int) -> list[int]:
    """Where the text's last `size` tokens stand before, in order; a place may overlap the end."""
    return [place for place in range(len(text) - size) if text[place : place + size] == text[-size:]]


def sizes_of(text: Text, lengths: Lengths) -> range:
    """The lengths that are looked up in a text, the longest first."""
    longest, shortest = lengths
    return range(min(longest, len(text) - 1), shortest - 1, -1)


def found(text: Text, sizes: Iterable[int], among: Callable[[list[int], int], Sequence[int]]) -> int | None:
    """Where the tokens behind the first place stand, of what `among(places, size)` leaves of a length's places."""
    for size in sizes:
        for place in among(places_of(text, size), size):
            return place + size
    return None


Find = Callable[[Text, int, Lengths], int | None]
"""Of the text, K and the lengths: where the drafts begin."""


def _drafter(loop: Loop) -> NGram:
    """The drafter of the only family that these are about."""
    return cast("NGram", loop.drafter)


def _at(loop: Loop, value: str, rules: dict[str, Find]) -> Mutation:
    config = _drafter(loop).config

    def following(inner: Callable[..., Text], text: Text, k: int) -> Text:
        start = rules[value](text, k, (config.longest, config.shortest))
        return [] if start is None else text[start : start + k]

    return _drafter(loop).following.around(following)


def _everywhere(places: list[int], size: int) -> list[int]:
    return places


PLACES: dict[str, Find] = {
    "the latest": lambda text, k, of: found(text, sizes_of(text, of), lambda places, size: places[::-1]),
    "the earliest but the first": lambda text, k, of: found(text, sizes_of(text, of), lambda places, size: places[1:]),
    "the earliest that does not overlap the end": lambda text, k, of: found(
        text, sizes_of(text, of), lambda places, size: [place for place in places if place + 2 * size <= len(text)]
    ),
    "the latest that does not overlap the end": lambda text, k, of: found(
        text,
        sizes_of(text, of),
        lambda places, size: [place for place in places if place + 2 * size <= len(text)][::-1],
    ),
    "the earliest with K tokens behind it": lambda text, k, of: found(
        text, sizes_of(text, of), lambda places, size: [place for place in places if place + size + k <= len(text)]
    ),
    "the latest with K tokens behind it": lambda text, k, of: found(
        text,
        sizes_of(text, of),
        lambda places, size: [place for place in places if place + size + k <= len(text)][::-1],
    ),
    "the earliest with K tokens behind it before the end's n-gram": lambda text, k, of: found(
        text, sizes_of(text, of), lambda places, size: [place for place in places if place + 2 * size + k <= len(text)]
    ),
    "the end itself": lambda text, k, of: len(text),
    "the earliest but the text's start": lambda text, k, of: found(
        text, sizes_of(text, of), lambda places, size: [place for place in places if place]
    ),
    "the one whose next token follows most often": lambda text, k, of: found(
        text, sizes_of(text, of), partial(_most_frequent, text)
    ),
}


def _most_frequent(text: Text, places: list[int], size: int) -> list[int]:
    """The earliest place before the token that most places have behind them."""
    behind = Counter(text[place + size] for place in places)
    return sorted(places, key=lambda place: (-behind[text[place + size]], place))


lookup("lookup-place", "of an n-gram's places another counts: {value}", values=PLACES, fix=ORDER_FIX)(
    partial(_at, rules=PLACES)
)

ORDERS: dict[str, Find] = {
    "the shortest with a place": lambda text, k, of: found(text, sizes_of(text, of)[::-1], _everywhere),
    "the longest alone": lambda text, k, of: found(text, sizes_of(text, of)[:1], _everywhere),
    "the shortest alone": lambda text, k, of: found(text, sizes_of(text, of)[-1:], _everywhere),
    "the one with the earliest place": lambda text, k, of: min(
        (place + size for size in sizes_of(text, of) for place in places_of(text, size)), default=None
    ),
    "the one with the latest place": lambda text, k, of: max(
        (place + size for size in sizes_of(text, of) for place in places_of(text, size)), default=None
    ),
}

lookup("lookup-order", "of the lengths of n-grams another counts: {value}", values=ORDERS, fix=ORDER_FIX)(
    partial(_at, rules=ORDERS)
)


@lookup(
    "lookup-lengths",
    "n-grams are looked up in other lengths, (longest, shortest) so many off: {value}",
    values=((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1), (2, 0), (-2, 0), (0, 2), (0, -2), (64, 0)),
    fix=LENGTHS_FIX,
)
def _(loop: Loop, value: Lengths) -> Mutation:
    config = _drafter(loop).config
    lengths = config.longest + value[0], config.shortest + value[1]
    if not 1 <= lengths[1] <= lengths[0]:
        raise NotApplicable(f"n-grams of {lengths[1]} to {lengths[0]} tokens")

    def following(inner: Callable[..., Text], text: Text, k: int) -> Text:
        start = found(text, sizes_of(text, lengths), _everywhere)
        return [] if start is None else text[start : start + k]

    return _drafter(loop).following.around(following)


def _drafting(loop: Loop, value: Any, change: Callable[[Loop, Any, Text, Text, int], Text]) -> Mutation:
    """`change(loop, value, drafts, text, K)` of what the lookup gives."""
    return _drafter(loop).following.around(lambda inner, text, k: change(loop, value, inner(text, k), text, k))


drafts = Family(_drafting, stages=("drafter.draft_tokens",), drafters=LOOKUP, fix=DRAFTS_FIX)


@drafts("lookup-start", "drafts begin {value:+d} tokens from the one behind the n-gram's place", values=(-1, 1, -2, 2))
def _(loop: Loop, delta: int, drafts: Text, text: Text, k: int) -> Text:
    config = _drafter(loop).config
    start = found(text, sizes_of(text, (config.longest, config.shortest)), _everywhere)
    return [] if start is None else text[max(start + delta, 0) : max(start + delta, 0) + k]


@drafts("lookup-start-at-match", "drafts begin with the n-gram itself")
def _(loop: Loop, value: None, drafts: Text, text: Text, k: int) -> Text:
    config = _drafter(loop).config
    for size in sizes_of(text, (config.longest, config.shortest)):
        for place in places_of(text, size):
            return text[place : place + k]
    return []


@drafts("lookup-count", "there are so many drafts more than K at the most: {value:+d}", values=(-1, 1, -2, 2))
def _(loop: Loop, more: int, drafts: Text, text: Text, k: int) -> Text:
    config = _drafter(loop).config
    start = found(text, sizes_of(text, (config.longest, config.shortest)), _everywhere)
    return [] if start is None else text[start : start + max(k + more, 0)]


@drafts(
    "lookup-count-of-length", "there are at the most as many drafts as {value}", values=("the longest n-gram", "one")
)
def _(loop: Loop, value: str, drafts: Text, text: Text, k: int) -> Text:
    return drafts[: _drafter(loop).config.longest if value != "one" else 1]


PADS = ("the last token", "the last draft", "pad", "eos", "bos", 0)


@drafts(
    "lookup-padded",
    "fewer than K drafts are filled up with {value}",
    values=[(pad, "where there is one") for pad in PADS] + [(pad, "and where there is none") for pad in PADS],
)
def _(loop: Loop, value: tuple[int | str, str], drafts: Text, text: Text, k: int) -> Text:
    pad, where = value
    if not drafts and where == "where there is one":
        return drafts
    target = loop.target.config
    known = {
        "the last token": text[-1],
        "the last draft": (drafts or text)[-1],
        "pad": target.pad_token_id,
        "bos": target.bos_token_id,
        "eos": loop.eos[0] if loop.eos else None,
    }
    token = known[pad] if isinstance(pad, str) else pad
    if token is None:
        raise NotApplicable(f"no {pad} token")
    return drafts + [int(token)] * (k - len(drafts))


drafts("lookup-whole-only", "fewer than K drafts are none")(
    lambda loop, value, drafts, text, k: drafts if len(drafts) == k else []
)
drafts("lookup-none", "there are no drafts")(lambda loop, value, drafts, text, k: [])
drafts("lookup-reversed", "drafts come in reverse order")(lambda loop, value, drafts, text, k: drafts[::-1])
drafts("lookup-wraps", "drafts that reach the text's end go on {value}", values=("at its start", "with themselves"))(
    lambda loop, value, drafts, text, k: (
        (drafts + text)[:k] if value == "at its start" else (drafts * k)[:k] if drafts else drafts
    )
)


@drafts("lookup-stops-at-eos", "drafts stop at EOS: {value}", values=("behind it", "before it"))
def _(loop: Loop, value: str, drafts: Text, text: Text, k: int) -> Text:
    ends = [place for place, token in enumerate(drafts) if token in loop.eos]
    return drafts[: ends[0] + (value == "behind it")] if ends else drafts


def _over(loop: Loop, value: Any, change: Callable[[Loop, Any, Text], Text]) -> Mutation:
    """`change(loop, value, text)` is the text that is looked up in, with the n-gram at its end."""
    return _drafter(loop).following.around(lambda inner, text, k: inner(change(loop, value, text), k))


texts = Family(_over, stages=("drafter.draft_tokens",), drafters=LOOKUP, fix=TEXT_FIX)
texts("lookup-text-short", "the text lacks its newest tokens: {value}", values=(1, 2))(
    lambda loop, many, text: text[:-many] if len(text) > many else text
)
texts(
    "lookup-text-late",
    "the text lacks its first tokens: {value}",
    values=(1, 2, 3, 4, "the prompt but its last", "the prompt"),
)(lambda loop, many, text: text[_first(loop, many) :])
texts("lookup-text-window", "the text is its newest {value} tokens", values=(16, 32, 64, 128, 256, 512, 1024, 2048))(
    lambda loop, many, text: text[-many:]
)


def _first(loop: Loop, many: int | str) -> int:
    if isinstance(many, int):
        return many
    return len(loop.state.prompt) - (many == "the prompt but its last")


@lookup(
    "lookup-prompt-alone",
    "n-grams are looked up in the prompt alone, drafts {value}",
    values=("from it alone", "from all text"),
    fix=TEXT_FIX,
)
def _(loop: Loop, value: str) -> Mutation:
    """The n-gram is the text's end in any case."""
    config = _drafter(loop).config

    def following(inner: Callable[..., Text], text: Text, k: int) -> Text:
        known = len(loop.state.prompt)
        within = lambda places, size: [place for place in places if place + size <= known]  # noqa: E731
        start = found(text, sizes_of(text, (config.longest, config.shortest)), within)
        return [] if start is None else text[start : min(start + k, known if value == "from it alone" else len(text))]

    return _drafter(loop).following.around(following)


@lookup(
    "lookup-text-stale",
    "the text is that of the round before, {value}",
    values=("with the newest token", "without anything of this one"),
    fix=TEXT_FIX,
)
def _(loop: Loop, value: str) -> Mutation:
    texts: list[Text] = []

    def following(inner: Callable[..., Text], text: Text, k: int) -> Text:
        texts.append(text)
        before = texts[-2] if len(texts) > 1 and len(texts[-2]) < len(text) else text
        known = before != text and value == "with the newest token"
        return inner(before + text[-1:] if known else before, k)

    def prefill(inner: Callable[[Tensor], None], prompt: Tensor) -> None:
        texts.clear()
        inner(prompt)

    return together((loop.prefill.around(prefill), _drafter(loop).following.around(following)))


@lookup(
    "lookup-text-rejected",
    "the text has rejected drafts: {value}",
    values=("before the target's token", "in place of the target's token", "one, before the target's token"),
    fix=TEXT_FIX,
)
def _(loop: Loop, value: str) -> Mutation:
    held: Text = []

    def prefill(inner: Callable[[Tensor], None], prompt: Tensor) -> None:
        inner(prompt)
        held[:] = [*prompt.tolist(), *loop.state.emitted]

    def accept(inner: Callable[..., tuple[int, int]], drafts: Tensor, tokens: Tensor) -> tuple[int, int]:
        before = len(loop.state.emitted)
        matched, length = inner(drafts, tokens)
        came, rejected = loop.state.emitted[before:], drafts.tolist()[matched:]
        if value.startswith("one"):
            rejected = rejected[:1]
        held.extend(came[:matched] + rejected)
        held.extend(came[matched:] if not rejected or value.endswith("before the target's token") else [])
        return matched, length

    looked = _drafter(loop).following.around(lambda inner, text, k: inner(list(held), k))
    return together((loop.prefill.around(prefill), loop.accept.around(accept), looked))


def in_slots(loop: Loop, value: Any, apply: Callable[[Loop, Any], Mutation]) -> Mutation:
    """A mutation over a cache of slots.

    Where a round has fewer drafts than the golden, whose tokens it goes on with, no pass writes the last of their rows:
    their slots are empty.
    """
    return together((apply(loop, value), handing_over(loop, "target", lambda: loop.state.length, whole=False)))


HYPOTHESES = [
    replace(each, apply=partial(in_slots, apply=each.apply))
    for family in (lookup, drafts, texts)
    for each in family.hypotheses
]
