"""Other rules of acceptance."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from parity.references.mutations import replaced, wrapped


def matched(loop: Any, value: None, how: str) -> AbstractContextManager:
    """Matches counted another way."""

    def around(inner, drafts, tokens):
        same = (drafts == tokens[:-1]).long()
        counts = {
            "past the mismatch": same.sum(),
            "up to the last match": (same * torch.arange(1, len(same) + 1)).max(),
            "one fewer": max(inner(drafts, tokens) - 1, 0),
            "one more": min(inner(drafts, tokens) + 1, len(drafts)),
            "against the next row": (drafts == tokens[1:]).long().cumprod(0).sum(),
            "none": 0,
            "all": len(drafts),
        }
        return int(counts[how])

    return wrapped(loop, "_matched", around)


def emitted(loop: Any, value: None, how: str) -> AbstractContextManager:
    """Another choice of what a round emits; never nothing, or it would not end."""

    def around(inner, drafts, tokens, matched):
        ids, all_matched = inner(drafts, tokens, matched), matched == len(drafts)
        forms = {
            "the rejected draft": drafts[: matched + 1].tolist() if not all_matched else ids,
            "the rejected draft as well": drafts[: matched + 1].tolist() + ids[-1:],
            "one token late": tokens[: matched + 2].tolist(),
            "no bonus behind K drafts": ids[:-1] if all_matched else ids,
            "no bonus": ids[:-1] or ids,
            "the bonus of the last row": [*ids[:-1], int(tokens[-1])],
            "the last token twice": ids + ids[-1:],
        }
        return forms[how]

    return wrapped(loop, "_emission", around)


def uncut(loop: Any, value: None, by: str) -> AbstractContextManager:
    """The round's tokens are not cut at the budget, or at EOS, or are cut one too early."""
    around = {
        "budget": lambda inner, ids: ids,
        "eos": lambda inner, ids: ids,
        "budget, one early": lambda inner, ids: inner(ids)[: max(loop.budget - len(loop.emitted) - 1, 1)],
        "eos dropped": lambda inner, ids: [token for token in inner(ids) if token not in loop.eos] or inner(ids),
    }[by]
    return wrapped(loop, "_within_budget" if by.startswith("budget") else "_until_eos", around)


@contextmanager
def shown(loop: Any, value: None, count: str):
    """The accepted count is handed over counted another way; what is emitted stays."""
    whole = [0]

    def emission(inner, drafts, tokens, matched):
        ids = inner(drafts, tokens, matched)
        whole[:] = [len(ids)]
        return ids

    def accept(inner, drafts, tokens):
        def tap(stage, value):
            if stage != "accept.length":
                return before(stage, value)
            other = {
                "without the bonus": int(value[0]) - 1,
                "uncut": whole[0],
                "uncut, without the bonus": whole[0] - 1,
                "K + 1 whatever came": len(tokens),
            }[count]
            given = torch.full_like(value, other)
            back = before(stage, given)
            return value if torch.equal(back, given) else back

        before = loop.tap
        with replaced(loop, "tap", tap):
            return inner(drafts, tokens)

    with wrapped(loop, "_emission", emission), wrapped(loop, "_accept", accept):
        yield
