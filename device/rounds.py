"""A whole round as one program: draft, verify, accept, commit, and the state of the next one.

A round's own passes write every row that an earlier one's rejected drafts left, before anything sees it; so the caches
are rolled back by lengths alone, and cleared once behind the last round.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.device.kernels.embed import embed
from parity.device.kernels.program import program
from parity.device.kernels.round import Parts, PassRows, State, committed, last, moved, placed
from parity.device.kernels.step import make_step
from parity.device.kernels.tap import untapped
from parity.device.plan import Plan
from parity.device.target import choose, joined, residual_streams


@program
def speculated(ends: Any, state: State, target: Parts, drafter: Parts, plan: Plan) -> tuple[State, Any]:
    """One round of every sequence; the caches are written in place.

    Args:
        ends: int32 [n], the end tokens.

    Returns:
        the state behind it, and what the host is told, int32 [B, 2K + 2]: K drafts, K+1 tokens of the target, and how
        many of those came out.
    """
    assert plan.draft is not None
    drafts = plan.draft(state, drafter, plan)
    ids = np.concatenate([last(state.tokens, state.count), drafts], axis=1)
    rows = placed(ids, state.length, 0 * state.count + ids.shape[1], state.live, plan.trash)
    verified, taps = verified_rows(rows, target, plan)
    after, length = committed(state, drafts, verified, taps, ends, plan.run_over)
    return after, np.concatenate([drafts, verified, length[:, None]], axis=1)


@program
def stepped(ends: Any, state: State, target: Parts, plan: Plan) -> tuple[State, Any]:
    """One token of plain decoding; what the host is told is int32 [B, 2]: the token, and whether it came out."""
    rows = placed(state.tokens, state.length, state.count, state.live, plan.trash)
    tokens, _ = verified_rows(rows, target, plan)
    came = state.live.astype(np.int32)
    return moved(state, tokens, ends), np.concatenate([tokens, came[:, None]], axis=1)


def verified_rows(rows: PassRows, target: Parts, plan: Plan) -> tuple[Any, Any]:
    """The target's greedy ids of a pass, int32 [B, W], and its taps, None where no drafter takes any."""
    step = make_step(rows.positions, rows.slots, target.tables, plan.span, plan.windows)
    x = embed(rows.ids, target.outer["embed"])
    streams = residual_streams(x, step, target.layers, target.caches, plan.target, plan.windows, untapped)
    ids = choose(streams[-1], target.outer, plan.target.eps, "verify", untapped)
    return ids, joined(streams, plan.taps) if plan.taps else None
