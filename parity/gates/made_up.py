"""Rounds made up through the tap: the accept rule on every pattern of agreement, and the tie rule on equal logits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from parity.decode import NO_DRAFTS, TargetPassTap, accepted, ended
from parity.errors import Inconclusive
from parity.rounds import untapped
from parity.seam import Device
from parity.stages import TARGET_TOKENS, VERIFY_TOKENS

PROMPT_TOKENS = 8
"""Tokens of the short prompt that rounds are made behind: the tokens are made up, the context does not matter."""

ONE_PIECE = "the device's loop is one piece (`parity.seam.Looping`): no round of it can be made up"

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
        Inconclusive: the device does not continue with the tokens that the tap returns.
    """
    eos = device.describe().eos
    wrong, count = [], 0
    for round_ in made:
        emitted, due = (
            _emitted(device, ids[:PROMPT_TOKENS], round_, eos),
            accepted(round_.drafts, round_.tokens, eos, round_.left),
        )
        count += 1
        if emitted != due:
            wrong.append(
                f"drafts {list(round_.drafts)}, chosen {list(round_.tokens)}, {round_.left} left: {emitted}, not {due}"
            )
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


def _emitted(device: Device, ids: tuple[int, ...], round_: MadeUpRound, eos: tuple[int, ...]) -> list[int]:
    """What the device emits in this round, right behind prefill."""
    budget = round_.left + 1
    if ended([int(device.prefill(ids, budget, untapped))], eos, budget):
        raise Inconclusive("the short prompt ends at its first token")
    device.draft(untapped)
    drafts, tokens = np.array(round_.drafts, np.int64), np.array(round_.tokens, np.int64)
    tap = TargetPassTap({VERIFY_TOKENS: tokens})
    returned = np.asarray(device.verify(drafts, tap))
    if returned.tolist() != tokens.tolist() and VERIFY_TOKENS in tap.seen:
        raise Inconclusive("the device does not continue with the tokens that the tap returns")
    emitted = [int(token) for token in device.commit(drafts, tokens, untapped)]
    if returned.tolist() != tokens.tolist() and emitted != tokens[: len(emitted)].tolist():
        raise Inconclusive("the device does not commit the tokens that it is given, and hands none to the tap")
    return emitted


TIE_ROUNDS = 4
TIE_PROMPT = 8
"""Tokens of the short prompt that the rows are made behind: the logits are made up, the context does not matter."""


@dataclass(frozen=True)
class TieRuleResult:
    """How many rows with equal largest logits were shown, and the choices that were not the lowest id."""

    rows: int
    wrong: tuple[str, ...]


def try_tie_rule(device: Device, ids: tuple[int, ...], k: int, seed: int) -> TieRuleResult:
    """Show the device rows of logits whose maximum stands in two or three columns, far apart, in every kind of pass.

    The lowest id is what NumPy, PyTorch and JAX choose, and so what the reference and any other pass choose.

    Raises:
        Inconclusive: the device does not continue with the logits that the tap returns.
    """
    random = np.random.default_rng(seed)
    shown, wrong = 0, []
    for _ in range(TIE_ROUNDS):
        for what, tap, chosen in _tied_passes(device, ids[:TIE_PROMPT], k, random):
            for row, (columns, token) in enumerate(zip(tap.columns[-len(chosen) :], chosen, strict=True)):
                if token not in columns:
                    raise Inconclusive("the device does not continue with the logits that the tap returns")
                shown += 1
                if token != min(columns):
                    wrong.append(f"{what}, row {row}: {token} of {sorted(columns)}")
    return TieRuleResult(shown, tuple(wrong))


def _tied_passes(
    device: Device, ids: tuple[int, ...], k: int, random: np.random.Generator
) -> Iterator[tuple[str, TieTap, np.ndarray]]:
    """Prefill, one row, K+1 rows: the tap and the device's own choices, those of the last rows if it shows no more."""
    tap = TieTap("target", random)
    first = device.prefill(ids, 2 * k + 2, tap)
    yield "prefill", _looked(tap), tap.seen.get(TARGET_TOKENS, np.array([first]))
    for drafts in (NO_DRAFTS, np.resize(np.array(ids, np.int64), k)):
        device.prefill(ids, 2 * k + 2, untapped)
        tap = TieTap("verify", random)
        tokens = device.verify(drafts, tap)
        yield f"{len(drafts) + 1} rows", _looked(tap), tap.seen.get(VERIFY_TOKENS, np.asarray(tokens))


def _looked(tap: TieTap) -> TieTap:
    """The tap, if it was handed logits."""
    if not tap.columns:
        raise Inconclusive(f"the device hands over no {tap.stage} in which rows could be made to tie")
    return tap


class TieTap(TargetPassTap):
    """Puts the same largest value into two or three columns of every row of logits."""

    def __init__(self, side: str, random: np.random.Generator):
        super().__init__(keep=lambda stage: stage == f"{side}.tokens")
        self.stage, self.random = f"{side}.logits", random
        self.columns: list[set[int]] = []

    def __call__(self, stage: str, value: np.ndarray) -> np.ndarray:
        if stage != self.stage:
            return super().__call__(stage, value)
        tied = np.array(value)
        for row in tied:
            columns = self.random.choice(len(row), size=int(self.random.integers(2, 4)), replace=False)
            row[columns] = np.abs(row.astype(np.float32)).max() + 1
            self.columns.append(set(columns.tolist()))
        return tied
