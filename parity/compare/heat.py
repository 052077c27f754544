"""Every approximate stage by layer and position, in x noise: where inside a model an error sits, at a glance."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from parity.compare.floor import HALF_ULP
from parity.compare.rows import stage_rows
from parity.golden.store import Dump
from parity.metrics import measure

COLUMNS = 48
"""Positions are pooled into this many columns at the most: a map has to fit a page."""


def heat(
    golden: Dump, run: Dump, columns: int = COLUMNS
) -> Iterator[tuple[str, dict[int | None, np.ndarray], np.ndarray]]:
    """Family, {layer: x [J], NaN where no row is}, and the first position of each column [J].

    x is the pooled error of the rows over that of the bfloat16 floor; a float32 run has no floor of its own, and gets
    its error over the golden's norm.
    """
    families: dict[str, list] = {}
    for name in run.manifest.stages:
        if name in golden.declared and not golden.declared[name].stage.exact:
            families.setdefault(golden.declared[name].stage.template, []).append(golden.declared[name])
    edges = _edges(golden, columns)
    for family, members in families.items():
        rows = ((named.layer, _row(golden, run, named, edges)) for named in members)
        found = {layer: row for layer, row in rows if row is not None}
        if found:
            yield family, found, edges


def _edges(golden: Dump, columns: int) -> np.ndarray:
    """First positions of equally wide columns."""
    prompts = golden.manifest.case.prompts
    longest = max(len(one.ids) + len(one.generation.emitted) for one in prompts if one.generation is not None)
    return np.arange(0, longest, max(-(-longest // columns), 1))


def _row(golden: Dump, run: Dump, named, edges: np.ndarray) -> np.ndarray | None:
    rows = stage_rows(golden, run, named)
    if rows is None or not len(rows.golden):
        return None
    column = np.clip(np.searchsorted(edges, rows.position, side="right") - 1, 0, None)
    error, floor = (_pooled(rows.golden, side, column, len(edges)) for side in (rows.device, rows.floor))
    size = np.sqrt(np.bincount(column, measure(rows.golden, rows.golden, rows=0).rows.golden_sq, minlength=len(edges)))
    empty = np.bincount(column, minlength=len(edges)) == 0
    if run.manifest.case.precision == "float32":
        floor = size
    x = error / np.maximum(floor, np.maximum(HALF_ULP * size, np.finfo(np.float32).tiny))
    return np.where(empty, np.nan, x)


def _pooled(golden: np.ndarray, side: np.ndarray, column: np.ndarray, count: int) -> np.ndarray:
    """||side - golden|| of each column; infinite where a value is not finite."""
    found = measure(golden, side, rows=0).rows
    whole = int(np.prod(golden.shape[1:]))
    broken = np.bincount(column, found.count < whole, minlength=count) > 0
    return np.where(broken, np.inf, np.sqrt(np.bincount(column, found.error_sq, minlength=count)))
