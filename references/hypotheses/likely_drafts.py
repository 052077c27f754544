"""Drafts that count although the target would not have chosen them: rules of acceptance that are left on."""

from __future__ import annotations

from collections.abc import Callable

from parity.references.hypotheses.accepting import ACCEPTED
from parity.references.hypotheses.catalogue import Family, Mutation
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.mutating import together

Rule = Callable[[Tensor, Tensor], Tensor]
"""From the target's log probabilities [K, V] and the drafts [K] to which of these count, bool [K]."""


def _typical(shares: Tensor, drafts: Tensor, most: float = 0.3, times: float = 0.09) -> Tensor:
    """Medusa's typical acceptance (arXiv 2401.10774, section 2.3.1), with its thresholds."""
    entropy = -(shares.exp() * shares.nan_to_num(neginf=0.0)).sum(-1)
    return _of(shares, drafts).exp() > torch.minimum(torch.tensor(most), times * (-entropy).exp())


def _of(shares: Tensor, drafts: Tensor) -> Tensor:
    return shares.gather(1, drafts[:, None])[:, 0]


def _among(most: int) -> Rule:
    return lambda shares, drafts: (shares > _of(shares, drafts)[:, None]).sum(-1) < most


def _likelier(least: float) -> Rule:
    return lambda shares, drafts: _of(shares, drafts).exp() > least


RULES: dict[str, Rule] = {
    "that is typical: likelier than the smaller of 0.3 and 0.09 exp(-entropy)": _typical,
    **{f"among its best {most}": _among(most) for most in (2, 3, 4, 5, 8, 10)},
    **{f"likelier than {least:g}": _likelier(least) for least in (0.5, 0.3, 0.2, 0.1, 0.05, 0.01)},
}

likely = Family(stages=ACCEPTED, fix="greedy acceptance: a draft counts where it is the target's own choice", cost=2)


@likely("accept-likely", "a draft counts {value} for the target", values=RULES)
def _(loop: Loop, value: str) -> Mutation:
    seen: list[Tensor] = []

    def tap(inner: Callable[..., Tensor], stage: str, x: Tensor, *of: int) -> Tensor:
        shown = inner(stage, x, *of)
        if stage == "verify.logits":
            seen[:] = [shown]
        return shown

    def matched(inner: Callable[..., int], drafts: Tensor, tokens: Tensor) -> int:
        shares = seen[0][: len(drafts)].float().log_softmax(-1)
        return inner(torch.where(RULES[value](shares, drafts), tokens[:-1], drafts), tokens)

    return together((loop.tap.around(tap), loop.matched.around(matched)))
