"""Rows that may attend to other pages than the golden's, unseen: a choice that rounding may tip changes all behind it.

A device under partial KV that shows no `pages` chooses them unseen and continues with them. In bfloat16 a row whose
best pages are nearly tied may take another one, and nobody saw why its numbers are others. Such rows fail nothing; they
settle nothing either.
"""

from __future__ import annotations

import numpy as np

from parity.compare.rows import StageRows, stage_rows
from parity.compare.scores import NOISE_SIGMAS, row_noise
from parity.families import family_of
from parity.golden.views import DumpView
from parity.stages import Named

PAGES, SCORES = "drafter.layers.{l}.pages", "drafter.layers.{l}.page_scores"
UNTOLD = "may attend to other pages within rounding, which are not shown: float32, or showing drafter.layers.*.pages"


def unseen_pages(golden: DumpView, run: DumpView, rows: StageRows) -> np.ndarray:
    """Which rows [R] of a stage lie behind pages that a bfloat16 run may have chosen otherwise, unseen.

    A row lies behind its own pages of the layers below, behind those of every row that it may see in a layer above
    that row's, and in a chain behind those of its round's rows before it.
    """
    behind = np.zeros(len(rows.golden), dtype=bool)
    if run.manifest.case.precision != "bfloat16":
        return behind
    for layer in range(golden.manifest.model.num_drafter_layers):
        pages = golden.declared.get(PAGES.format(l=layer))
        if pages is None or layer > _depth(rows.named):
            continue
        if not all(side.view.shows(pages.name) for side in run.sides):
            tied = near_ties(golden, layer)
            behind |= np.array([tuple(label) in tied for label in rows.labels.tolist()], bool)
            if layer < _depth(rows.named):
                behind |= _after(tied, rows, one_round=False)
            if family_of(golden.manifest.model.family).chain:
                behind |= _after(tied, rows, one_round=True)
    return behind


def near_ties(golden: DumpView, layer: int) -> set[tuple[int, int, int]]:
    """Prompt, round and position of the rows whose last page taken and first page left are within rounding."""
    names = (golden.declared[one.format(l=layer)] for one in (SCORES, PAGES))
    scores, pages = (stage_rows(golden, golden, one, device="float32", mode="chained") for one in names)
    if scores is None or pages is None:
        return set()
    taken, ranked = pages.golden.shape[1], np.sort(scores.golden, axis=1)[:, ::-1]
    last = ranked[:, taken - 1]
    few = last == ranked[:, -1]  # fewer pages than it may retrieve: the others have the least score
    near = ~few & (last - ranked[:, min(taken, ranked.shape[1] - 1)] <= NOISE_SIGMAS * row_noise(scores))
    return {tuple(label) for label in scores.labels[near].tolist()}


def _depth(named: Named) -> int:
    """The layer whose pages a stage of the drafter is computed from at the most; -1 where it is from none."""
    if named.layer is None:
        last = named.stage.side == "drafter" and named.stage.part in ("pre_head_hidden", "logits", "draft_tokens")
        return np.iinfo(np.int64).max if last else -1
    if not named.name.startswith(("drafter.layers.", "kv.drafter.")):
        return -1
    return named.layer - (named.stage.cache or named.stage.part in ("page_scores", "pages"))


def _after(tied: set[tuple[int, int, int]], rows: StageRows, one_round: bool) -> np.ndarray:
    """Rows [R] behind the first tied position of their prompt; of their round where it is a chain's."""
    first: dict[tuple[int, int], int] = {}
    for prompt, round_, position in tied:
        place = prompt, round_ * one_round
        first[place] = min(position, first.get(place, position))
    places = zip(rows.prompt.tolist(), (rows.round * one_round).tolist(), strict=True)
    bounds = np.array([first.get(place, np.iinfo(np.int64).max) for place in places], np.int64)
    return np.asarray(rows.position > bounds)
