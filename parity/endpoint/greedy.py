"""Greedy continuations: the server's against the golden's, and with speculation against without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from parity.compare.choices import BUG, NOISE, SAME, TIE
from parity.compare.report import FAIL, PASS, Place
from parity.endpoint.server import Continuation, Parting
from parity.gates.gate import Check
from parity.stages import VERIFY_TOKENS


def continuations(asked: Sequence[Continuation]) -> Check:
    """Every token that the server chooses, given the golden's before it: the same, a tie, within noise, or another."""
    partings = [(one, parting) for one in asked for parting in one.partings]
    verdicts = Counter(parting.verdict for _, parting in partings)
    wrong = next(((one, parting) for one, parting in partings if parting.verdict == BUG), None)
    chosen, alike = sum(len(one.choices) for one in asked), sum(not one.partings for one in asked)
    line = f"{alike} of {len(asked)} prompts the golden's text, {chosen} tokens; "
    line += f"{len(partings)} others: {_listed(verdicts)}"
    figures = {"prompts": len(asked), "same": alike, "tokens": chosen, "others": dict(verdicts)}
    if not wrong:
        return Check("greedy continuations", PASS, line, figures)
    one, parting = wrong
    line += f"; prompt {one.truth.case.id}: {_said(parting)}"
    return Check("greedy continuations", FAIL, line, figures, _place(one, parting.row))


def _listed(verdicts: Counter[str]) -> str:
    return ", ".join(f"{verdicts[name]} {name}" for name in (TIE, NOISE, BUG) if verdicts[name] or name in (TIE, BUG))


def _said(parting: Parting) -> str:
    if parting.golden < 0:
        return "the server continues behind the token that ends the golden's text"
    if parting.server < 0:
        return f"the server ends its text where the golden continues with token {parting.golden}"
    return f"token {parting.server} for {parting.golden}, whose logit is {parting.regret:.3g} higher"


def lossless(asked: Sequence[Continuation], plain: Sequence[Continuation]) -> Check:
    """What speculation chose against what plain decoding chose, each given the same tokens before."""
    verdicts: Counter[str] = Counter()
    first: Place | None = None
    for mine, theirs in zip(asked, plain, strict=True):
        for step, (one, other) in enumerate(zip(mine.choices, theirs.choices, strict=False)):
            row = len(mine.truth.case.ids) - 1 + step
            verdict = SAME if one == other else BUG if min(one, other) < 0 else mine.truth.judge(row, one, other)[0]
            verdicts[verdict] += 1
            first = _place(mine, row) if verdict == BUG and first is None else first
    texts = sum(mine.free.tokens == theirs.free.tokens for mine, theirs in zip(asked, plain, strict=True))
    line = (
        f"{texts} of {len(asked)} prompts the same text; of {sum(verdicts.values())} tokens {verdicts[SAME]} the same, "
    )
    figures = {"prompts": len(asked), "same": texts, "tokens": dict(verdicts)}
    return Check("speculation on = off", FAIL if first else PASS, line + _listed(verdicts), figures, first)


def _place(one: Continuation, row: int) -> Place:
    return Place(VERIFY_TOKENS, None, one.truth.number, 0, row + 1)
