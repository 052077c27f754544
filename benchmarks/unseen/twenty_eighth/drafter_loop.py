"""What follows the drafter's layers: final norm, head, d2t, drafts, acceptance."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.unseen.moments import Moment, alter, replaced
from benchmarks.unseen.planting import Part
from benchmarks.unseen.rewriting import rewritten
from parity.device.pipeline import Pipeline

fault = Part("head, drafts and acceptance", 28)


@fault(
    "final-norm-over-padded-width",
    "The final norm divides its sum of squares by the padded width of 128, not by the 96 columns that there are.",
    "drafter.pre_head_hidden",
    "draft",
    "the drafter's final norm is larger by sqrt(128 / 96)",
)
def _(pipeline: Pipeline) -> None:
    def norm(at: Moment, clean: Any, x: Any, weight: Any, eps: float) -> Any:
        return at.changed(clean(x, weight, eps), lambda value: value * np.float32((128 / 96) ** 0.5))

    alter(pipeline, "drafter:llama_norm", norm)


@fault(
    "head-window-saturates",
    "The row that the head begins at is kept in one bit: behind longer runs the drafts begin at row 1.",
    "drafter.pre_head_hidden",
    "draft",
    "the window of rows that the head reads begins at row 1 where it should at row C - 1",
    "rounds behind one that accepted two drafts or more",
    "accepted >= 2",
)
def _(pipeline: Pipeline) -> None:
    def choose(at: Moment, clean: Any, x: Any, committed: int, k: int, record: Any) -> Any:
        return clean(x, min(committed, 2), k, record)

    replaced(pipeline, pipeline.drafter, "choose", choose)


@fault(
    "head-last-tile-repeats",
    "The last tile of the draft head is loaded from the tile before it: 992 columns are no multiple of the tile's 64.",
    "drafter.logits",
    "draft",
    "columns 960 to 991 of the drafter's head are columns 928 to 959",
)
def _(pipeline: Pipeline) -> None:
    def change(head: np.ndarray) -> np.ndarray:
        head[:, 960:] = head[:, 928:960].copy()
        return head

    rewritten(pipeline, pipeline.drafter.outer, "head", change)


@fault(
    "d2t-clamped-at-512",
    "The gather from d2t clamps its index to a table of 512 rows: larger draft ids get the offset of row 511.",
    "drafter.draft_tokens",
    "draft",
    "d2t of draft ids from 512 on is that of 511",
    "drafts whose id in the draft vocabulary is 512 or more",
)
def _(pipeline: Pipeline) -> None:
    def mapped(at: Moment, clean: Any, ids: Any, d2t: Any) -> Any:
        held = at.host(ids)
        clamped = np.minimum(held, 511)
        return at.changed(clean(at.array(clamped, ids), d2t), lambda value: value + (held - clamped))

    alter(pipeline, "drafter:to_target_ids", mapped)


@fault(
    "drafts-rolled",
    "Drafts are written to a ring that begins one slot too late: the last one comes out first.",
    "drafter.draft_tokens",
    "draft",
    "the K drafts are rolled by one place",
)
def _(pipeline: Pipeline) -> None:
    def mapped(at: Moment, clean: Any, ids: Any, d2t: Any) -> Any:
        return at.changed(clean(ids, d2t), lambda value: np.roll(value, 1, axis=-1))

    alter(pipeline, "drafter:to_target_ids", mapped)


@fault(
    "correction-from-next-row",
    "The token that replaces a rejected draft is read from the verify row behind the one that rejected it.",
    "accept.emitted",
    "commit",
    "the last token emitted is that of the next verify row",
    "rounds in which not all of K + 1 tokens come out",
)
def _(pipeline: Pipeline) -> None:
    def accepted(at: Moment, clean: Any, drafts: np.ndarray, verified: np.ndarray) -> int:
        length: int = clean(drafts, verified)
        if length < len(verified):
            verified[length - 1] = verified[length]
        return length

    replaced(pipeline, pipeline, "accepted", accepted)


@fault(
    "verify-begins-with-last-draft",
    "The host reads the last emitted token at index K - 1 at the most: behind a full run that is the last draft.",
    "target.embed",
    "verify",
    "the first id of the verify pass is the token before the bonus token",
    "the first row of the verify pass behind a round that accepted all 4 drafts",
    "pass = verify and accepted = 4 and row = 0",
)
def _(pipeline: Pipeline) -> None:
    def run(at: Moment, clean: Any, ids: np.ndarray, width: int, group: str, record: Any) -> Any:
        if at.kind == "verify" and len(pipeline._emitted) > pipeline.k:
            ids = np.concatenate([pipeline._emitted[pipeline.k - 1 : pipeline.k], ids[1:]])
        return clean(ids, width, group, record)

    replaced(pipeline, pipeline, "_target_pass", run)
