"""Two loops of one device: what is sent ahead gives the tokens and the caches of what waits, bit for bit.

In float32 the text of the one that waits has to be the golden's as well: two loops may be wrong alike.

A device has both where its factory takes the option `loop`, `synchronous` or `asynchronous`. Where it takes `chunk`
too, both are built with the same one: static shapes that follow what a host knows of the length are then the same in
both, so that no sum is added in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, cast

import numpy as np

from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, PASS, Place
from parity.errors import Inconclusive, NotOffered
from parity.gates.context import GateContext
from parity.gates.gate import Check
from parity.gates.golden_tokens import GoldenTokens
from parity.golden.case import PromptCase
from parity.rounds import untapped
from parity.seam import Device, Inspectable, Looping
from parity.shown import stages_of
from parity.stages import ACCEPT_EMITTED, DRAFT_TOKENS
from parity.trace import Trace

LOOPS = ("synchronous", "asynchronous")
CHUNK = 2
"""Rounds that are read together: two chunks in flight are four rounds, and more than one is read at once."""
PROMPTS = 4
"""At the most, the shortest and the longest among them."""

Round = tuple[tuple[int, ...], tuple[int, ...]]
"""Drafts, and the tokens that came out."""


@dataclass
class SideBySide:
    """What the two loops of a device made of some prompts.

    Attributes:
        tensors, rows: of caches that were compared.
        tokens, caches: where the loops first differ, and how; None where they do not.
        texts: the synchronous loop's tokens by the number of the prompt.
    """

    prompts: int = 0
    rounds: int = 0
    tensors: int = 0
    rows: int = 0
    tokens: tuple[Place, str] | None = None
    caches: tuple[Place, str] | None = None
    unseen: list[str] = field(default_factory=list)
    texts: dict[int, list[int]] = field(default_factory=dict)


def checks(context: GateContext) -> Iterator[Check]:
    """Tokens and caches, in float32 where the device offers that, and in the run's precision."""
    for precision in dict.fromkeys((context.sharpest, context.precision)):
        try:
            waiting, ahead = (both_built(context, precision, loop) for loop in LOOPS)
        except NotOffered as error:
            yield Check("both loops", NOT_JUDGED, f"the device has one loop: {error}", undeclared=True)
            return
        if waiting.describe() == ahead.describe():
            alike = "with either value of `loop` the device describes itself alike: nothing says that it has two"
            yield Check("both loops", INCONCLUSIVE, alike)
            return
        seen = SideBySide()
        for number, prompt in _chosen(context):
            _compare(seen, number, prompt, context, waiting, ahead)
        yield _tokens(seen, precision)
        yield _caches(seen, precision)
        if precision == context.sharpest:
            yield _text(seen, context, precision)


def both_built(context: GateContext, precision: str, loop: str) -> Device:
    """The device with this loop.

    Raises:
        NotOffered: its factory takes no `loop`.
    """
    k = context.golden.manifest.case.k
    try:
        return context.build(precision=precision, k=k, loop=loop, chunk=CHUNK)
    except NotOffered:
        return context.build(precision=precision, k=k, loop=loop)


def _chosen(context: GateContext) -> list[tuple[int, PromptCase]]:
    prompts = sorted(enumerate(context.golden.manifest.case.prompts), key=lambda each: len(each[1].ids))
    places = np.linspace(0, len(prompts) - 1, min(PROMPTS, len(prompts)))
    return [prompts[int(place)] for place in places]


def _compare(
    seen: SideBySide, number: int, prompt: PromptCase, context: GateContext, waiting: Device, ahead: Device
) -> None:
    budget = context.golden.manifest.case.max_new_tokens
    right, said = rounds_of(waiting, prompt.ids, budget), rounds_of(ahead, prompt.ids, budget)
    seen.prompts, seen.rounds = seen.prompts + 1, seen.rounds + len(right)
    seen.texts[number] = [token for _, emitted in right for token in emitted]
    if said != right and seen.tokens is None:
        seen.tokens = _parted(number, right, said)
        if rounds_of(waiting, prompt.ids, budget) != right:
            seen.unseen.append("the synchronous loop gives other tokens when it is run again")
    if not isinstance(waiting, Inspectable) or not isinstance(ahead, Inspectable):
        seen.unseen.append("the device does not show its caches behind a loop (parity.seam.Inspectable)")
    elif said == right:  # of other tokens the caches are other ones
        _compare_caches(seen, number, len(right), _held(waiting), _held(ahead))


def rounds_of(device: Device, ids: Sequence[int], budget: int) -> list[Round]:
    """What each round drafted and emitted, the prefill the first of them; nobody watches.

    Where a loop returns other tokens than its rounds emitted, these are one round more.
    """
    rounds: list[Round] = []

    def over(drafts: Sequence[Any], emitted: Sequence[Any], tokens: Sequence[Any] | None = None) -> None:
        rounds.append((tuple(map(index, drafts)), tuple(map(index, emitted))))

    if isinstance(device, Looping):
        returned = tuple(map(index, device.speculate(ids, budget, untapped, over)))
        told = tuple(token for _, emitted in rounds for token in emitted)
        return rounds if returned == told else [*rounds, ((), returned)]
    eos, left = device.describe().eos, budget - 1
    over((), [device.prefill(ids, budget, untapped)])
    while left > 0 and rounds[-1][1][-1] not in eos:
        drafts = device.draft(untapped)
        emitted = device.commit(drafts, device.verify(drafts, untapped), untapped)
        over(cast(Sequence[Any], drafts), cast(Sequence[Any], emitted))
        left -= len(emitted)
    return rounds


def _held(device: Inspectable) -> dict[str, np.ndarray]:
    """The caches' stages as they are."""
    trace = Trace(stages_of(cast(Device, device).describe()))
    device.show_caches(trace)
    return {stage: tensor for (_, stage), tensor in trace.tensors.items()}


def _compare_caches(
    seen: SideBySide, number: int, round_: int, right: dict[str, np.ndarray], held: dict[str, np.ndarray]
) -> None:
    for stage in dict.fromkeys((*right, *held)):
        seen.tensors += 1
        old, new = right.get(stage), held.get(stage)
        if old is None or new is None or old.shape != new.shape or old.dtype != new.dtype:
            shapes = [None if one is None else list(one.shape) for one in (old, new)]
            wrong = f"{stage} is {shapes[1]} in the asynchronous loop, {shapes[0]} in the synchronous one"
            seen.caches = seen.caches or (Place(stage, None, number, round_ - 1), wrong)
            continue
        seen.rows += len(old)
        bytes_ = (np.ascontiguousarray(one).reshape(len(one), -1).view(np.uint8) for one in (old, new))
        rows = np.flatnonzero(np.any(np.not_equal(*bytes_), axis=1))
        if rows.size and seen.caches is None:
            wrong = f"{rows.size} of {len(old)} rows of {stage} have other bits, the first one at position {rows[0]}"
            seen.caches = Place(stage, None, number, round_ - 1, int(rows[0])), wrong


def _parted(number: int, right: list[Round], said: list[Round]) -> tuple[Place, str]:
    """The first round that is another one."""
    round_ = next((n for n, pair in enumerate(zip(right, said, strict=False)) if pair[0] != pair[1]), None)
    if round_ is None:
        round_ = min(len(right), len(said))
        what = f"{len(said)} rounds in place of {len(right)}, or it returns other tokens than those of its rounds"
        return Place(ACCEPT_EMITTED, None, number, round_), what
    (drafts, emitted), (own_drafts, own) = right[round_], said[round_]
    stage = DRAFT_TOKENS if drafts != own_drafts else ACCEPT_EMITTED
    what = (
        f"drafts {list(own_drafts)}, not {list(drafts)}"
        if drafts != own_drafts
        else f"{list(own)}, not {list(emitted)}"
    )
    return Place(stage, None, number, round_), f"round {round_} of prompt {number} has {what}"


def _tokens(seen: SideBySide, precision: str) -> Check:
    name = f"the same rounds, {precision}"
    line = f"{seen.prompts} prompts, {seen.rounds - seen.prompts} rounds: drafts and tokens of both loops"
    figures = {"prompts": seen.prompts, "rounds": seen.rounds - seen.prompts}
    if seen.tokens is None:
        return Check(name, PASS, line, figures, exact=precision == "float32")
    place, what = seen.tokens
    unlike = [why for why in seen.unseen if "again" in why]
    return Check(name, INCONCLUSIVE if unlike else FAIL, "; ".join([what, *unlike]), figures, place)


def _text(seen: SideBySide, context: GateContext, precision: str) -> Check:
    """Whether what both loops say is right: two loops that are wrong alike are the same."""
    name = f"the golden's text, {precision}"
    if precision != "float32":
        why = "the device does not offer float32, and bfloat16 parts from the golden by its rounding (see lossless)"
        return Check(name, NOT_JUDGED, why)
    try:
        found = GoldenTokens(context.golden, precision).beside(seen.texts)
    except Inconclusive as error:
        return Check(name, INCONCLUSIVE, str(error))
    figures = {"prompts": found.texts, "same": found.same, "others": dict(found.verdicts)}
    return Check(name, FAIL if found.place else PASS, found.evidence, figures, found.place, exact=True)


def _nothing(seen: SideBySide) -> str:
    return "the device shows no caches" if seen.tokens is None else "no prompt gave the same rounds"


def _caches(seen: SideBySide, precision: str) -> Check:
    name = f"the same caches, {precision}"
    if seen.caches is not None:
        place, what = seen.caches
        return Check(name, FAIL, what, {"tensors": seen.tensors}, place)
    if not seen.tensors:
        return Check(name, NOT_JUDGED, "; ".join(dict.fromkeys(seen.unseen)) or _nothing(seen))
    line = f"{seen.tensors} tensors, {seen.rows} rows behind the last round: bit for bit"
    return Check(name, PASS, line, {"tensors": seen.tensors, "rows": seen.rows}, exact=precision == "float32")
