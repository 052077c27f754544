"""Routed experts, where the server returns them: the golden's, or a choice that a router tie or noise explains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from parity.compare.choices import BUG, NOISE, SAME, TIE, judge_experts
from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, PASS, Place
from parity.compare.rows import NOISY, row_floors
from parity.endpoint.server import Continuation
from parity.endpoint.truth import experts
from parity.errors import Inconclusive
from parity.gates.gate import Check
from parity.golden.views import TrustedGolden
from parity.metrics import measure

NAME = "routed experts"


def routed(golden: TrustedGolden, asked: Sequence[Continuation]) -> Check:
    """Experts of every token, layer by layer; a token's layers behind its first other choice are set apart."""
    sent = [one for one in asked if one.scored is not None and one.scored.experts is not None]
    if not sent:
        return Check(NAME, NOT_JUDGED, "the server returns none (vLLM: --enable-return-routed-experts; SGLang as well)")
    stages = [name for name in golden.declared if name.endswith(".experts")]
    found: Counter[str] = Counter()
    place: Place | None = None
    for one in sent:
        try:
            mine, theirs, scores = _aligned(golden, one, stages)
        except Inconclusive as error:
            return Check(NAME, INCONCLUSIVE, str(error))
        verdicts = _judged(mine, theirs, scores)
        found.update(verdicts.ravel().tolist())
        if place is None and (verdicts == BUG).any():
            row, layer = np.argwhere(verdicts == BUG)[0].tolist()
            place = Place(stages[layer], layer, one.truth.number, 0, row)
    line = f"{found[SAME]} choices the golden's, {found[TIE]} tie, {found[NOISE]} noise, {found[BUG]} bug; "
    line += f"{found['apart']} behind another choice of the same token"
    return Check(NAME, FAIL if place else PASS, line, {"choices": dict(found)}, place)


def _aligned(
    golden: TrustedGolden, one: Continuation, stages: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Experts [R, L, X] of golden and server, and the golden's scores [R, L, E] of both precisions.

    Raises:
        Inconclusive: they do not fit each other.
    """
    sent = one.scored.experts if one.scored is not None else None
    if sent is None or not stages:
        raise Inconclusive("the golden has no experts to compare with")
    # Rows of the generated token's pass may be there or not: only those of the prompt are counted on.
    mine = experts(golden, one.truth, stages, len(one.truth.sequence) - 1)
    rows, layers, count = mine.shape
    width = layers * count
    flat = sent.reshape(-1)
    if flat.size % width or not rows - 1 <= flat.size // width <= rows + 1:
        raise Inconclusive(
            f"the server returns {flat.size} expert ids for {rows} tokens of {layers} layers with {count} experts each"
        )
    rows = min(rows, flat.size // width)
    names = [stage.removesuffix("experts") + "router_logits" for stage in stages]
    scores = {
        "float32": experts(golden, one.truth, names, rows),
        "bfloat16": experts(golden, one.truth, names, rows, "bfloat16"),
    }
    return mine[:rows], flat.reshape(-1, layers, count)[:rows], scores


def _judged(mine: np.ndarray, theirs: np.ndarray, scores: dict[str, np.ndarray]) -> np.ndarray:
    """A verdict for every token and layer [R, L]; `apart` behind a token's first other choice."""
    layers = []
    apart = np.zeros(len(mine), bool)
    for layer in range(mine.shape[1]):
        exact, noisy = (np.ascontiguousarray(side[:, layer]) for side in scores.values())
        rows = measure(exact, noisy, row_axes=1).rows
        relative = row_floors(rows.rel_l2, np.zeros(len(exact), bool), NOISY)
        noise = relative * np.sqrt(rows.golden_sq / exact.shape[1])
        verdict = judge_experts(exact, mine[:, layer].astype(np.int64), theirs[:, layer], noise).verdict
        layers.append(np.where(apart & (verdict != SAME), "apart", verdict))
        apart |= verdict != SAME
    return np.stack(layers, axis=1)
