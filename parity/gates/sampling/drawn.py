"""A device's accept rule alone where it draws by numbers of its own: how often each outcome of a round comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.compare.report import FAIL, NOT_JUDGED, PASS
from parity.compare.sampling.oracle import processed, round_outcomes
from parity.errors import NotOffered
from parity.gates.context import GateContext
from parity.gates.gate import Check
from parity.gates.sampling.counts import ERROR_RATE
from parity.gates.sampling.rule import P, Q, decided, made_up, of_probabilities
from parity.seam import DRAWS, Device, Rule, Sampling

DRAWN = 50_000
"""Rounds of each settings: an outcome of one half is seen 0.012 off, one of a hundredth 0.0025."""


@dataclass(frozen=True)
class Often:
    """How often one outcome came, and how often it is due.

    Attributes:
        emitted: accepted drafts, and one token.
    """

    emitted: tuple[int, ...]
    share: float
    due: float
    rounds: int

    @property
    def surprise(self) -> float:
        """How many times over the evidence is that an assertion of the error rate allows: beyond 1 it is wrong.

        P(share is so far off) <= 2 exp(-n KL(share, due)) for every n (Chernoff).
        """
        return self.rounds * _divergence(self.share, self.due) / float(np.log(2 / ERROR_RATE))

    def __str__(self) -> str:
        *drafts, token = self.emitted
        said = f"{len(drafts)} accepted ({drafts}), then token {token}"
        return f"{said}: {self.share:.4f} of {self.rounds} rounds instead of {self.due:.4f}"


def rule_drawn(context: GateContext, rule: Rule, processors: Mapping[str, Any]) -> Check:
    """The device's rule alone, plain and behind these processors."""
    name, device, seed, refused = f"rule alone, {rule}", context.device(), context.seed, ""
    often: list[Often] = []
    for asked, values in ((known_rounds, {}), (random_rounds, processors)):
        try:
            often.append(asked(device, Sampling(rule=rule, **values), seed))
        except NotOffered as error:
            refused = str(error)
    if not often:
        return Check(name, NOT_JUDGED, refused)
    worst = max(often, key=lambda one: one.surprise)
    figures = {"rounds": worst.rounds, "share": worst.share, "due": worst.due, "surprise": worst.surprise}
    line = f"{worst}, {worst.surprise:.2g} of what error rate {ERROR_RATE:g} allows; seed {seed}"
    said = f"{line}; not asked: {refused}" if refused else line
    return Check(name, FAIL if worst.surprise > 1 else PASS, said, figures)


def known_rounds(device: Device, settings: Sampling, seed: int) -> Often:
    """Two drafts in a vocabulary of four; the outcome that is the least likely to come so often."""
    return _worst(device, settings, of_probabilities(P), of_probabilities(Q), seed)


def random_rounds(device: Device, settings: Sampling, seed: int) -> Often:
    """The same of random logits in a vocabulary of eight, behind the processors."""
    return _worst(device, settings, *made_up(seed), seed)


def _worst(device: Device, settings: Sampling, target: np.ndarray, draft: np.ndarray, seed: int) -> Often:
    p, q, random = processed(target, settings), processed(draft, settings), np.random.default_rng(seed)
    drafts = np.stack([random.choice(q.shape[1], DRAWN, p=row) for row in q], axis=1)
    many = tuple(np.broadcast_to(rows, (DRAWN, *rows.shape)).copy() for rows in (target, draft))
    ids = decided(device, settings, *many, drafts, random.random((DRAWN, len(DRAWS), len(p)), np.float32))
    kept = np.cumprod(ids[:, :-1] == drafts, axis=1).sum(axis=1)
    came = Counter(tuple(row[: length + 1]) for row, length in zip(ids.tolist(), kept.tolist(), strict=True))
    due = round_outcomes(p, q, settings.rule)
    seen = [Often(one, came[one] / DRAWN, due.get(one, 0.0), DRAWN) for one in {**came, **due}]
    return max(seen, key=lambda one: one.surprise)


def _divergence(share: float, due: float) -> float:
    """Kullback and Leibler's of two coins; infinite where what cannot come comes, or what must come does not."""
    due = min(max(due, 0.0), 1.0)
    if due < TINY or due > 1 - TINY:
        return 0.0 if abs(share - due) < TINY else float("inf")
    terms = [(share, due), (1 - share, 1 - due)]
    return float(sum(mine * np.log(mine / theirs) for mine, theirs in terms if mine > 0))


TINY = 1e-9
"""Of a probability: what float64's sums leave of 0 and of 1."""
