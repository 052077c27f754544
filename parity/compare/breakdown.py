"""One stage's error by position, head or expert: where inside the stage it sits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from parity.compare.floor import HALF_ULP
from parity.compare.rows import StageRows, stage_rows
from parity.errors import UsageError
from parity.golden.store import Dump
from parity.stages import Named


@dataclass(frozen=True)
class Slice:
    """Rows or heads of one label pooled: relative L2 of device and floor, and their ratio (x noise)."""

    label: int
    rows: int
    relative_l2: float
    floor_l2: float

    @property
    def x(self) -> float:
        """Multiple of the noise, the floor being half a ULP at least."""
        return self.relative_l2 / max(self.floor_l2, HALF_ULP)


def splits(named: Named, per: str) -> bool:
    """Whether a stage has this label: any approximate one has positions, few have heads or experts."""
    if per == "head":
        return bool({"N", "G"} & set(named.stage.axes))
    if per == "expert":
        return named.stage.template in ("target.layers.{l}.ffn_out", "target.layers.{l}.out")
    return not named.stage.exact


def breakdown(golden: Dump, run: Dump, stages: Sequence[str], per: str, worst: int) -> dict[str, list[Slice]]:
    """The worst slices of each stage that has this label, the worst first.

    Args:
        per: `position` in the sequence; `head` of a stage with a head axis; `expert` chosen by the golden.

    Raises:
        UsageError: none of the stages has this label.
    """
    cut = {"position": _positions, "head": _heads, "expert": _experts}[per]
    found = {}
    for name in stages:
        rows = stage_rows(golden, run, golden.declared[name]) if splits(golden.declared[name], per) else None
        if rows is not None:
            found[name] = sorted(cut(rows, golden, run), key=lambda one: -one.x)[:worst]
    if not found:
        raise UsageError(f"--per {per}: none of the shown stages ({', '.join(stages[:3])} …) can be split that way")
    return found


def _positions(rows: StageRows, golden: Dump, run: Dump) -> Iterator[Slice]:
    for position in np.unique(rows.position):
        yield _slice(int(position), *(side[rows.position == position] for side in _sides(rows)))


def _heads(rows: StageRows, golden: Dump, run: Dump) -> Iterator[Slice]:
    for head in range(rows.golden.shape[1]):
        yield _slice(head, *(side[:, head] for side in _sides(rows)))


def _experts(rows: StageRows, golden: Dump, run: Dump) -> Iterator[Slice]:
    prefix = rows.named.name.rsplit(".", 1)[0]
    chosen = stage_rows(golden, golden, golden.declared[f"{prefix}.experts"], device="float32", mode="local")
    if chosen is None or len(chosen.golden) != len(rows.golden):
        raise UsageError(f"--per expert: the golden has no experts for the rows of {rows.named.name}")
    for expert in np.unique(chosen.golden):
        inside = (chosen.golden == expert).any(axis=1)
        yield _slice(int(expert), *(side[inside] for side in _sides(rows)))


def _sides(rows: StageRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return rows.golden, rows.device, rows.floor


def _slice(label: int, golden: np.ndarray, device: np.ndarray, floor: np.ndarray) -> Slice:
    golden = golden.astype(np.float64)
    size = float(np.sqrt((golden**2).sum()))
    error, noise = (float(np.sqrt(((side.astype(np.float64) - golden) ** 2).sum())) for side in (device, floor))
    scale = size if size > 0 else 1.0
    return Slice(label, len(golden), error / scale, noise / scale)
