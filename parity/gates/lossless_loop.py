"""Losslessness of a loop in one piece: it emits what its own plain decoding emits, and that is the golden's text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import index
from typing import cast

from parity.compare.report import FAIL, INCONCLUSIVE, PASS, Place
from parity.decode import ended
from parity.errors import DeviceFailed
from parity.gates.context import GateContext
from parity.gates.gate import Check
from parity.gates.golden_tokens import GoldenTokens, TextResult, first_difference
from parity.looping import generate_loop
from parity.rounds import untapped
from parity.seam import Device, Looping, PlainDecoding
from parity.stages import ACCEPT_EMITTED


@dataclass
class LoopTexts:
    """What a loop emitted of each prompt of a golden, with drafts and without.

    Attributes:
        accepted: drafts that came out, of all prompts.
        parted: the first place in which the two differ, by the number of the prompt.
    """

    free: dict[int, list[int]] = field(default_factory=dict)
    plain: dict[int, list[int]] = field(default_factory=dict)
    accepted: int = 0
    parted: dict[int, int] = field(default_factory=dict)


def loop_checks(context: GateContext, precision: str) -> Iterator[Check]:
    """Speculation against plain decoding, and plain decoding against the golden, each of every golden prompt.

    No stage of a free run is seen. In float32 nothing explains another token. In bfloat16 one is explained where the
    text before it is the golden's and its logits tie there or are within noise; where they do not, experts of an
    earlier row may have tipped, and it is inconclusive.
    """
    device = context.device(precision)
    texts = _texts(context, device)
    golden = GoldenTokens(context.golden, precision)
    yield speculation_check(texts, golden, precision)
    found = golden.beside(texts.plain)
    figures = {"prompts": found.texts, "same": found.same, "others": dict(found.verdicts)}
    name = f"plain decoding = the golden's text, {precision}"
    yield Check(name, _verdict(found, precision), found.evidence, figures, found.place)


def _texts(context: GateContext, device: Device) -> LoopTexts:
    case, texts = context.golden.manifest.case, LoopTexts()
    for number, prompt in enumerate(case.prompts):
        context.progress(number, len(case.prompts), f"lossless {prompt.id}")
        run = generate_loop(cast(Looping, device), prompt.ids, case.max_new_tokens, untapped)
        texts.free[number], texts.accepted = list(run.emitted), texts.accepted + sum(run.accepted_drafts)
        texts.plain[number] = _plain(device, prompt.ids, case.max_new_tokens)
        if texts.free[number] != texts.plain[number]:
            texts.parted[number] = first_difference(texts.free[number], texts.plain[number])
    return texts


def _plain(device: Device, ids: tuple[int, ...], budget: int) -> list[int]:
    """Raises:
    DeviceFailed: it ends early, or is too long.
    """
    says = device.describe()
    tokens = [index(token) for token in cast(PlainDecoding, device).decode_plain(ids, budget)]
    if not tokens or not ended(tokens, says.eos, budget) or len(tokens) > budget:
        early = f"it ends after {len(tokens)} tokens of a budget of {budget}, and not by an end token"
        raise DeviceFailed(says.name, "decode_plain", early)
    return tokens


def speculation_check(texts: LoopTexts, golden: GoldenTokens, precision: str) -> Check:
    """Speculation against plain decoding of the same loop; `golden` may explain what parts in bfloat16."""
    name = f"speculation = plain decoding, {precision}"
    tokens, count = sum(map(len, texts.plain.values())), len(texts.plain)
    line = f"{count - len(texts.parted)} of {count} prompts the same, {tokens} tokens, {texts.accepted} accepted drafts"
    figures = {"prompts": count, "same": count - len(texts.parted), "tokens": tokens, "accepted_drafts": texts.accepted}
    if not texts.parted:
        tried = "" if texts.accepted else "; no draft was ever accepted: losslessness was not tried"
        return Check(name, PASS if texts.accepted else INCONCLUSIVE, line + tried, figures)
    number, at = next(iter(texts.parted.items()))
    own, plain = (str(one[number][at]) if at < len(one[number]) else "its end" for one in (texts.free, texts.plain))
    line += f"; prompt {number}, token {at}: {own}, plain decoding has {plain}"
    place = Place(ACCEPT_EMITTED, None, number, 1)
    if precision == "float32":
        return Check(name, FAIL, line, figures, place)
    both = [golden.beside({one: side[one] for one in texts.parted}) for side in (texts.free, texts.plain)]
    reached = all(golden.holds(one, texts.plain[one][:at]) for one, at in texts.parted.items())
    explained = reached and not any(found.place for found in both)
    why = "tied in the golden's logits, or within their noise" if explained else "no logits are seen that explain it"
    return Check(name, PASS if explained and texts.accepted else INCONCLUSIVE, f"{line}; {why}", figures, place)


def _verdict(found: TextResult, precision: str) -> str:
    if found.place is None:
        return PASS
    return FAIL if precision == "float32" else INCONCLUSIVE
