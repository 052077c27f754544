"""What is known of the rows of a stage: where they stand, what went before, what entered and which experts ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from parity.compare.entered import entered_tokens
from parity.compare.rows import Clock, StageRows, stage_rows
from parity.errors import UsageError
from parity.files import config_of
from parity.golden.views import DumpView

LENGTHS = ("window", "position", "context", "length", "chunk", "block", "page")
"""Parts of a key's name that make its number a place in the sequence; a head dimension of 32 is none."""


@dataclass(frozen=True)
class Facts:
    """Of rows [R], int64 unless said otherwise.

    Attributes:
        prompt, round, position: as in `StageRows`; `index` counts a row inside its tensor, `count` that tensor's rows.
        prompts: tokens of the row's prompt.
        committed: of drafter stages, the committed rows of the tensor, -1 where the stage has none of its own.
        side: target, verify, drafter or kv.
        experts: bool [R] by expert that the golden chose, where the stage lies behind a router.
        lengths: numbers of the checkpoints' configs by name.
        cached: rows in the model's own cache before the pass; None where that is not known.
        accepted: drafts that the round before accepted, -1 in the prefill and in round 1; None where not known.
        layer: of the row's stage, -1 outside the layers; None where all rows are of one stage.
        token: the id that entered the row's pass at its position, -1 where that is not known; None where it never is.
    """

    prompt: np.ndarray
    round: np.ndarray
    position: np.ndarray
    index: np.ndarray
    count: np.ndarray
    prompts: np.ndarray
    committed: np.ndarray
    side: str
    experts: Mapping[int, np.ndarray] = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)
    cached: np.ndarray | None = None
    accepted: np.ndarray | None = None
    layer: np.ndarray | None = None
    token: np.ndarray | None = None

    @classmethod
    def of(cls, golden: DumpView, rows: StageRows) -> Facts:
        """Of these rows over a golden; a checkpoint that is not here any more has no lengths."""
        lengths = _lengths(golden, rows.named.stage.side)
        return replace(cls.of_places(golden, rows), experts=_routed(golden, rows), lengths=lengths)

    @classmethod
    def of_places(cls, golden: DumpView, rows: StageRows) -> Facts:
        """The same but for experts and lengths: what takes no tensor of the stage's layer and no config."""
        cases = golden.manifest.case.prompts
        edges = np.flatnonzero(np.diff(rows.prompt, prepend=-1) | np.diff(rows.round, prepend=-1))
        counts = np.diff(np.append(edges, len(rows.prompt)))
        cached, accepted = _histories(golden, rows, edges, counts)
        return cls(
            prompt=rows.prompt,
            round=rows.round,
            position=rows.position,
            index=np.arange(len(rows.prompt)) - np.repeat(edges, counts),
            count=np.repeat(counts, counts),
            prompts=np.array([len(case.ids) for case in cases])[rows.prompt],
            committed=_committed(golden, rows),
            side=rows.named.stage.side,
            cached=cached,
            accepted=accepted,
            token=entered_tokens(golden, rows),
        )


def _histories(golden: DumpView, rows: StageRows, edges: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """Of each row the rows cached before its pass, and the drafts accepted in the round before it."""
    drafter = "drafter" in rows.named.name
    clocks = [Clock.of(case, golden.manifest) for case in golden.manifest.case.prompts]
    seen = []
    for prompt, round_ in zip(rows.prompt[edges].tolist(), rows.round[edges].tolist(), strict=True):
        clock = clocks[prompt]
        cached = (clock.drafted[round_ - 1] if drafter else clock.length(round_ - 1)) if round_ else 0
        seen.append((cached, clock.emitted[round_ - 1] - 1 if round_ > 1 else -1))
    return [np.repeat(np.array(values, np.int64), counts) for values in zip(*seen, strict=True)]


def _committed(golden: DumpView, rows: StageRows) -> np.ndarray:
    """Committed rows of a drafter pass: known tokens; the head's stages start at the last of them."""
    if rows.named.stage.side != "drafter":
        return np.full(len(rows.prompt), -1)
    clocks = [Clock.of(case, golden.manifest) for case in golden.manifest.case.prompts]
    head = rows.named.name in ("drafter.pre_head_hidden", "drafter.logits", "drafter.draft_tokens")
    one = head or rows.named.stage.axes[0] == "B"  # a block begins with one known token
    due = [
        (1 if one else clocks[prompt].committed(round_)) if round_ else -1
        for prompt, round_ in zip(rows.prompt.tolist(), rows.round.tolist(), strict=True)
    ]
    return np.array(due)


def _routed(golden: DumpView, rows: StageRows) -> dict[int, np.ndarray]:
    if rows.named.stage.part not in ("ffn_out", "out") or rows.named.stage.side != "target":
        return {}
    name = f"target.layers.{rows.named.layer}.experts"
    if name not in golden.manifest.stages:
        return {}
    chosen = stage_rows(golden, golden, golden.declared[name], device="float32", mode="chained")
    if chosen is None or not np.array_equal(chosen.position, rows.position) or chosen.golden.ndim != 2:
        return {}
    return {int(expert): (chosen.golden == expert).any(axis=1) for expert in np.unique(chosen.golden)}


def _lengths(golden: DumpView, side: str) -> dict[str, int]:
    """The lengths of the stage's own checkpoint first, then those that only the other one has."""
    model = golden.manifest.model
    order = (model.drafter, model.target) if side == "drafter" else (model.target, model.drafter)
    lengths: dict[str, int] = {}
    for part in order:
        for name, number in _numbers(_config(Path(part.path))):
            lengths.setdefault(name, number)
    return lengths


def _config(folder: Path) -> dict[str, Any]:
    """A checkpoint's config; nothing where it is absent, too large or broken: a relation is no verdict."""
    try:
        return config_of(folder)
    except UsageError:
        return {}


def _numbers(part: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Every whole number whose name says that it is a length, parts included."""
    for name, value in part.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif type(value) is int and value > 0 and any(part in name for part in LENGTHS) and not name.startswith("num_"):
            yield name, value
