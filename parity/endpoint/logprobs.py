"""Log-probabilities of the golden's tokens, as the server scores them: whether they are evidence, then in x noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parity.compare.report import FAIL, INCONCLUSIVE, PASS, WARN, Place
from parity.compare.rows import quantile
from parity.compare.scores import NOISE_SIGMAS
from parity.endpoint.server import Continuation
from parity.gates.gate import Check
from parity.stages import TARGET_LOGITS, VERIFY_LOGITS

NAME = "prompt log-probabilities"

ROWS = 100
"""Scored tokens from which a quantile of 95 % means something: five lie beyond it."""

SHARE = 0.95
"""The rows that are judged together. A server chooses its own experts: in 1 row of 37 a router tie of the tiny pair
tips (146 of 43,608 choices, eight layers), and the error of such a row is no rounding. Clean vLLM 0.32 in bfloat16 is
0.97 x noise at this quantile, and 5.4 in the RMS of a prompt with one such row; float32 0.02 of its unit."""

OK, MOST = 1.5, 3.0
"""x noise at that quantile: the bounds of the bfloat16 policy over a stage's rows, for its reasons."""

POSITIVE = 1e-4
"""What rounding may leave of log 1; beyond it, it is no log-probability."""


def refusal(asked: Sequence[Continuation]) -> str:
    """Why a server's log-probabilities are no evidence; '' where they are."""
    if any(one.scored is None or one.scored.prompt is None for one in asked):
        return "the server returns none (vLLM: prompt_logprobs; SGLang: input_token_logprobs): its numbers are unknown"
    scores = _scores(asked)
    missing = int(np.isnan(scores).sum())
    if missing == len(scores):
        return f"all {missing} are null: the server scores no prompt"
    if missing:
        return f"{missing} of {len(scores)} are null: what it makes of these tokens is unknown"
    if not scores.any():
        return f"all {len(scores)} are 0: a probability of one for every token is no evidence"
    if len(np.unique(scores)) <= max(1, len(scores) // 50):
        return f"only {len(np.unique(scores))} different values in {len(scores)}: no model's"
    if len(scores) < ROWS:
        return f"only {len(scores)} tokens are scored, {ROWS} are needed: give the golden more prompts"
    return ""


def prompt_logprobs(asked: Sequence[Continuation]) -> Check:
    """Every token of the golden's sequences, scored by the server."""
    if why := refusal(asked):
        return Check(NAME, INCONCLUSIVE, f"refused as evidence: {why}", {"refused": why})
    scores, truth, floor, noise = _sides(asked)
    errors = np.abs(scores - truth) / noise
    base = quantile(np.abs(floor - truth) / noise, SHARE) or 1.0  # float32: in units of its own bound
    typical, worst = quantile(errors, SHARE) / base, float(errors.max())
    beyond = np.flatnonzero(errors > NOISE_SIGMAS)
    figures = {"rows": len(errors), "typical": typical, "worst": worst, "beyond": len(beyond)}
    line = f"{len(errors)} tokens: 95 % within {typical:.2f} x noise, worst {worst:.1f} (bounds {OK}, {NOISE_SIGMAS:g})"
    if positive := int((scores > POSITIVE).sum()):
        return Check(NAME, FAIL, f"{positive} of {len(scores)} are positive: they are no log-probabilities", figures)
    if len(beyond) or not typical <= MOST:
        place = _place(asked, int((beyond if len(beyond) else errors.argmax(keepdims=True))[0]))
        return Check(NAME, FAIL, line + (f"; {len(beyond)} tokens beyond" if len(beyond) else ""), figures, place)
    return Check(NAME, PASS if typical <= OK else WARN, line, figures)


def between(asked: Sequence[Continuation], plain: Sequence[Continuation]) -> Check:
    """The same tokens scored by both servers: a drafter has no part in them."""
    name = "log-probabilities with and without speculation"
    if why := refusal(asked) or refusal(plain):
        return Check(name, INCONCLUSIVE, f"refused as evidence: {why}")
    (mine, _, _, noise), (theirs, *_) = _sides(asked), _sides(plain)
    errors = np.abs(mine - theirs) / noise
    same, worst = float((mine == theirs).mean()), float(errors.max())
    # Each of the two may be so far from the golden.
    verdict = PASS if worst <= 2 * NOISE_SIGMAS else FAIL
    place = None if verdict == PASS else _place(asked, int(errors.argmax()))
    line = f"{len(errors)} tokens: {same:.0%} alike to the bit, worst {worst:.1f} x noise (bound {2 * NOISE_SIGMAS:g})"
    return Check(name, verdict, line, {"rows": len(errors), "same": same, "worst": worst}, place)


def _scores(asked: Sequence[Continuation]) -> np.ndarray:
    """What the server says of every token but each prompt's first, which nothing comes before."""
    return np.concatenate([one.scored.prompt[1:] for one in asked if one.scored and one.scored.prompt is not None])


def _sides(asked: Sequence[Continuation]) -> tuple[np.ndarray, ...]:
    """Server, golden, floor and noise over all prompts, but for the row that decides the last token."""
    parts = ([getattr(one.truth, side)[:-1] for one in asked] for side in ("logprobs", "floor", "noise"))
    return (_scores(asked), *(np.concatenate(part) for part in parts))


def _place(asked: Sequence[Continuation], row: int) -> Place:
    """The prompt and position of a row of all prompts."""
    for one in asked:
        rows = len(one.truth.sequence) - 2
        if row < rows:
            inside = row < len(one.truth.case.ids)
            return Place(TARGET_LOGITS if inside else VERIFY_LOGITS, None, one.truth.number, 0, row)
        row -= rows
    raise ValueError("no such row")
