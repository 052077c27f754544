"""Where inside a stage, and inside the model, an error sits: by position, head, expert and layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from parity.compare.rows import HALF_ULP, StageRows, stage_rows
from parity.errors import UsageError
from parity.golden.views import DumpView, TrustedGolden
from parity.metrics import measure
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
        return float(self.relative_l2 / max(self.floor_l2, HALF_ULP))


def splits(named: Named, per: str) -> bool:
    """Whether a stage has this label: any approximate one has positions, few have heads or experts."""
    if per == "head":
        return bool({"N", "G"} & set(named.stage.axes))
    if per == "expert":
        return named.stage.template in ("target.layers.{l}.ffn_out", "target.layers.{l}.out")
    return not named.stage.exact


def breakdown(
    golden: TrustedGolden, run: DumpView, stages: Sequence[str], per: str, worst: int
) -> dict[str, list[Slice]]:
    """The worst slices of each stage that has this label, the worst first.

    Args:
        per: `position` in the sequence; `head` of a stage with a head axis; `expert` chosen by the golden.

    Raises:
        UsageError: none of the stages has this label.
    """
    cut = {"position": _positions, "head": _heads, "expert": _experts}[per]
    slices = {}
    for name in stages:
        rows = stage_rows(golden, run, golden.declared[name]) if splits(golden.declared[name], per) else None
        if rows is not None:
            slices[name] = sorted(cut(rows, golden, run), key=lambda part: -part.x)[:worst]
    if not slices:
        raise UsageError(f"--per {per}: none of the shown stages ({', '.join(stages[:3])} …) can be split that way")
    return slices


def _positions(rows: StageRows, golden: TrustedGolden, run: DumpView) -> Iterator[Slice]:
    for position in np.unique(rows.position):
        yield _slice(int(position), *(side[rows.position == position] for side in _sides(rows)))


def _heads(rows: StageRows, golden: TrustedGolden, run: DumpView) -> Iterator[Slice]:
    for head in range(rows.golden.shape[1]):
        yield _slice(head, *(side[:, head] for side in _sides(rows)))


def _experts(rows: StageRows, golden: TrustedGolden, run: DumpView) -> Iterator[Slice]:
    prefix = rows.named.name.rsplit(".", 1)[0]
    chosen = stage_rows(golden, golden, golden.declared[f"{prefix}.experts"], device="float32", mode="local")
    if chosen is None or len(chosen.golden) != len(rows.golden):
        raise UsageError(f"--per expert: the golden has no experts for the rows of {rows.named.name}")
    for expert in np.unique(chosen.golden):
        inside = (chosen.golden == expert).any(axis=1)
        yield _slice(int(expert), *(side[inside] for side in _sides(rows)))


def _sides(rows: StageRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return rows.golden, rows.device, rows.noise_floor


def _slice(label: int, golden: np.ndarray, device: np.ndarray, floor: np.ndarray) -> Slice:
    golden = golden.astype(np.float64)
    size = float(np.sqrt((golden**2).sum()))
    error, noise = (float(np.sqrt(((side.astype(np.float64) - golden) ** 2).sum())) for side in (device, floor))
    scale = size if size > 0 else 1.0
    return Slice(label, len(golden), error / scale, noise / scale)


COLUMNS = 48
"""Positions are pooled into this many columns at the most: a map has to fit a page."""


def heat(
    golden: TrustedGolden, run: DumpView, columns: int = COLUMNS
) -> Iterator[tuple[str, dict[int | None, np.ndarray], np.ndarray]]:
    """Family, {layer: x [J], NaN where no row is}, and the first position of each column [J].

    x is the pooled error of the rows over that of the bfloat16 floor; a float32 run has no floor of its own, and gets
    its error over the golden's norm.
    """
    families: dict[str, list[Named]] = {}
    for name in run.manifest.stages:
        if name in golden.declared and not golden.declared[name].stage.exact:
            families.setdefault(golden.declared[name].stage.template, []).append(golden.declared[name])
    edges = _edges(golden, columns)
    for family, members in families.items():
        rows = ((named.layer, _row(golden, run, named, edges)) for named in members)
        layers = {layer: row for layer, row in rows if row is not None}
        if layers:
            yield family, layers, edges


def _edges(golden: TrustedGolden, columns: int) -> np.ndarray:
    """First positions of equally wide columns."""
    prompts = golden.manifest.case.prompts
    longest = max(len(case.ids) + len(case.generation.emitted) for case in prompts if case.generation is not None)
    return np.arange(0, longest, max(-(-longest // columns), 1))


def _row(golden: TrustedGolden, run: DumpView, named: Named, edges: np.ndarray) -> np.ndarray | None:
    rows = stage_rows(golden, run, named)
    if rows is None or not len(rows.golden):
        return None
    column = np.clip(np.searchsorted(edges, rows.position, side="right") - 1, 0, None)
    error, floor = (_pooled(rows.golden, side, column, len(edges)) for side in (rows.device, rows.noise_floor))
    size = np.sqrt(
        np.bincount(column, measure(rows.golden, rows.golden, row_axes=1).rows.golden_sq, minlength=len(edges))
    )
    empty = np.bincount(column, minlength=len(edges)) == 0
    if run.manifest.case.precision == "float32":
        floor = size
    x = error / np.maximum(floor, np.maximum(HALF_ULP * size, np.finfo(np.float32).tiny))
    return np.where(empty, np.nan, x)


def _pooled(golden: np.ndarray, side: np.ndarray, column: np.ndarray, count: int) -> np.ndarray:
    """||side - golden|| of each column; infinite where a value is not finite."""
    sums = measure(golden, side, row_axes=1).rows
    whole = int(np.prod(golden.shape[1:]))
    broken = np.bincount(column, sums.count < whole, minlength=count) > 0
    return np.where(broken, np.inf, np.sqrt(np.bincount(column, sums.error_sq, minlength=count)))
