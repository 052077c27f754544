"""The accept rule on made-up tokens: every pattern of agreement, every budget, an end token in every place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from parity.decode import TargetPassTap, accepted, ended
from parity.drive import untapped
from parity.errors import Inconclusive
from parity.seam import Device

PROMPT = 8
"""Tokens of the short prompt that rounds are made behind: the tokens are made up, the context does not matter."""

PATTERNS = 32
"""Patterns of agreement at most: all of them up to K = 5, an even choice of them beyond."""


@dataclass(frozen=True)
class MadeUpRound:
    """Drafts [n], the target's tokens [n+1] that are handed to the device, and what may still be emitted."""

    drafts: tuple[int, ...]
    tokens: tuple[int, ...]
    left: int


@dataclass(frozen=True)
class AcceptRuleResult:
    """How many rounds were tried, and the first that went wrong, in words."""

    rounds: int
    wrong: tuple[str, ...]


def try_accept_rule(device: Device, ids: tuple[int, ...], made: Iterable[MadeUpRound]) -> AcceptRuleResult:
    """Try the device's accept step on made-up rounds, each right behind a prefill.

    Raises:
        Inconclusive: the device does not go on with the tokens that the tap returns.
    """
    eos = device.describe().eos
    wrong, count = [], 0
    for one in made:
        emitted, due = _emitted(device, ids[:PROMPT], one, eos), accepted(one.drafts, one.tokens, eos, one.left)
        count += 1
        if emitted != due:
            wrong.append(f"drafts {list(one.drafts)}, chosen {list(one.tokens)}, {one.left} left: {emitted}, not {due}")
    return AcceptRuleResult(count, tuple(wrong))


def agreements(ids: tuple[int, ...], k: int, eos: tuple[int, ...]) -> Iterator[MadeUpRound]:
    """No draft, then K of them in every pattern of agreement with the target, nothing cut."""
    tokens, other = _tokens(ids, k, eos)
    yield MadeUpRound((), tuple(tokens[:1]), 2 * k + 2)
    patterns = list(product((True, False), repeat=k))
    for pattern in patterns[:: max(1, len(patterns) // PATTERNS)]:
        drafts = [tokens[place] if same else other[place] for place, same in enumerate(pattern)]
        yield MadeUpRound(tuple(drafts), tuple(tokens), 2 * k + 2)


def cuts(ids: tuple[int, ...], k: int, eos: tuple[int, ...]) -> Iterator[MadeUpRound]:
    """K accepted drafts, cut by every budget up to K+1 and by an end token in every place."""
    tokens, _ = _tokens(ids, k, eos)
    for left in range(1, k + 2):
        yield MadeUpRound(tuple(tokens[:k]), tuple(tokens), left)
    for place in range(k + 1) if eos else ():
        ending = [*tokens[:place], eos[0], *tokens[place + 1 :]]
        yield MadeUpRound(tuple(ending[:k]), tuple(ending), 2 * k + 2)


def _tokens(ids: tuple[int, ...], k: int, eos: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """K+1 tokens that the prompt has anyway, and for each another one."""
    legal = [token for token in dict.fromkeys(ids) if token not in eos]
    if len(legal) < 2:
        raise Inconclusive("the prompt has no two tokens to make rounds of")
    places = np.arange(k + 1) % len(legal)
    return [legal[place] for place in places], [legal[(place + 1) % len(legal)] for place in places]


def _emitted(device: Device, ids: tuple[int, ...], one: MadeUpRound, eos: tuple[int, ...]) -> list[int]:
    """What the device emits in this round, right behind prefill."""
    budget = one.left + 1
    if ended([int(device.prefill(ids, budget, untapped))], eos, budget):
        raise Inconclusive("the short prompt ends at its first token")
    device.draft(untapped)
    drafts, tokens = np.array(one.drafts, np.int64), np.array(one.tokens, np.int64)
    returned = np.asarray(device.verify(drafts, TargetPassTap({"verify.tokens": tokens})))
    if returned.tolist() != tokens.tolist():
        raise Inconclusive("the device does not go on with the tokens that the tap returns")
    return [int(token) for token in device.commit(drafts, returned, untapped)]
