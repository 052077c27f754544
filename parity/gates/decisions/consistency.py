"""A device's tokens against its own logits: the lowest id among the exact maxima of the row it recorded."""

from __future__ import annotations

import numpy as np

from parity.compare.report import FAIL, INCONCLUSIVE, PASS, Place
from parity.compare.rows import stage_rows
from parity.compare.scores import SCORES
from parity.gates.decisions.vocabulary import Vocabulary
from parity.gates.evidence import Check
from parity.golden.store import Dump


def consistent(golden: Dump, run: Dump, vocabulary: Vocabulary) -> Check:
    """All rows of target, verify and drafter; no golden number enters."""
    name, counts, wrong, lacking = "its own logits", {}, [], []
    for stage in ("target.tokens", "verify.tokens", "drafter.draft_tokens"):
        rows = [stage_rows(golden, run, golden.declared[one]) for one in (stage, SCORES[stage])]
        if any(one is None for one in rows) or len(rows[0].device) != len(rows[1].device):
            lacking.append(stage)
            continue
        tokens, scores = rows[0], rows[1].device.astype(np.float32)
        chosen, known = tokens.device.astype(np.int64), np.ones(len(scores), dtype=bool)
        best = scores == scores.max(axis=1, keepdims=True)
        lowest = best.argmax(axis=1)
        if stage.startswith("drafter"):
            due = vocabulary.tokens[lowest]
            known, lowest = due >= 0, due
        lacking += [f"{(~known).sum()} rows of {stage} (no column known)"] if not known.all() else []
        differ = np.flatnonzero(known & (chosen != lowest))
        counts[stage] = {"rows": len(chosen), "tied": int((best.sum(axis=1) > 1).sum()), "wrong": len(differ)}
        wrong += [(tokens, int(row), int(chosen[row]), int(lowest[row])) for row in differ]
    tied = sum(one["tied"] for one in counts.values())
    total = sum(one["rows"] for one in counts.values())
    figures = {"stages": counts, "vocabulary": vocabulary.source, "lacking": lacking}
    if wrong:
        rows, row, chosen, lowest = min(wrong, key=lambda one: (one[0].round[one[1]], one[0].prompt[one[1]]))
        place = Place(rows.named.name, None, *(int(x[row]) for x in (rows.prompt, rows.round, rows.position)))
        said = f"{len(wrong)} of {total} tokens are not the lowest id among their row's maxima: {chosen} for {lowest}"
        return Check(name, FAIL, said, figures, place)
    said = f"{total} tokens are the lowest id among the exact maxima of the row recorded ({tied} rows tie)"
    if lacking:
        return Check(name, INCONCLUSIVE, f"missing: {', '.join(lacking)}; {said}", figures)
    return Check(name, PASS, said, figures)
