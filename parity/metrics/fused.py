"""The pass compiled with numba, for float32 and bfloat16 in any combination.

A block of `BLOCK` elements stays in first-level cache while a few loops visit it, each small enough for
LLVM to vectorise (`kernels`); memory is read once, and the next block is prefetched meanwhile. The GIL
is released. numba caches the machine code on disk, beside this file or in NUMBA_CACHE_DIR.
"""

from __future__ import annotations

import numpy as np

from parity.metrics import kernels as k
from parity.metrics import partial as p
from parity.metrics.dtypes import BFLOAT16
from parity.metrics.kernels import jit
from parity.metrics.partial import Partial

BLOCK = 2048


@jit
def _tile(g32, g16, gf32, d32, d16, df32, columns, half, addresses, steps, rows, ulps, counts):
    """Fold a tile into `rows`, `ulps` and `counts`; see `fold`."""
    gb, db = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint32)
    gf, df = gb.view(np.float32), db.view(np.float32)
    gh, dh = np.empty(BLOCK, np.uint16), np.empty(BLOCK, np.uint16)
    apart32, apart16 = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint16)
    buckets = np.zeros(BLOCK, np.uint8)
    cells = np.empty(BLOCK, np.uint16)
    table = np.zeros(k.CELLS, np.uint32)
    packed = 3 if half else 2
    keep, sums = np.empty(BLOCK, np.int32), np.zeros(p.WIDTH)
    best = -1.0
    for r in range(rows.shape[0]):
        for c in range(0, columns, BLOCK):
            n = min(BLOCK, columns - c)
            if half:
                k.widen(g32[r, c : c + n], g16[r, c : c + n], gb[:n])
                k.widen(d32[r, c : c + n], d16[r, c : c + n], db[:n])
                g, d, gx, dx = gb[:n], db[:n], gf[:n], df[:n]
            else:
                g, d, gx, dx = g32[r, c : c + n], d32[r, c : c + n], gf32[r, c : c + n], df32[r, c : c + n]
            k.moments(gx, dx, sums)
            kept = not np.isfinite(sums[p.EE] + sums[p.GG])
            if kept:
                n = k.compact(gx, dx, g, d, gb, db, keep, counts, r * columns + c)
                g, d, gx, dx = gb[:n], db[:n], gf[:n], df[:n]
                k.moments(gx, dx, sums)
            sums[p.AE], worst = k.absolute(gx, dx)
            if not np.isfinite(worst):
                sums[p.AE], worst = k.absolute_wide(gx, dx)
            for column in range(p.MAX):
                rows[r, column] += sums[column]
            rows[r, p.MAX] = max(rows[r, p.MAX], worst)
            if n and worst > best:
                best = worst
                at = k.find(gx, dx, worst)
                counts[p.WORST] = r * columns + c + (keep[at] if kept else at)
            if half:
                gs, ds = g16[r, c : c + n], d16[r, c : c + n]
                if kept or gs.size < n:
                    k.narrow(g, gh)
                    gs = gh[:n]
                if kept or ds.size < n:
                    k.narrow(d, dh)
                    ds = dh[:n]
                furthest, least = k.ulps16(gs, ds, apart16)
                k.buckets16(apart16[:n], buckets)
                m = k.pack3(buckets[:n], cells)
            else:
                furthest, least = k.ulps32(g, d, apart32)
                k.buckets32(apart32[:n], buckets)
                m = k.pack2(buckets[:n], cells)
            if least == 0:
                counts[p.ZEROS] += k.zeros(g, d)
            counts[p.ULP_MAX] = max(counts[p.ULP_MAX], np.int64(furthest))
            for j in range(m * packed, n):
                ulps[buckets[j]] += 1
            ahead = r * columns + c + BLOCK
            next_g, next_d = addresses[0] + ahead * steps[0], addresses[1] + ahead * steps[1]
            k.tally(cells[:m], table, next_g, next_d, 8 * packed * steps[0], 8 * packed * steps[1])
    k.unpack(table, k.LENGTHS16 if half else k.LENGTHS32, ulps)


def supports(golden: np.dtype, device: np.dtype) -> bool:
    """Whether both sides are float32 or bfloat16."""
    return all(dtype in (BFLOAT16, np.float32) for dtype in (golden, device))


def fold(golden: np.ndarray, device: np.ndarray, unit: np.dtype) -> Partial:
    """Sums of one tile, as `plain.fold`; float32 or bfloat16 [R, C], C-contiguous."""
    part = Partial.empty(len(golden))
    addresses = np.array([side.ctypes.data for side in (golden, device)])
    steps = np.array([side.itemsize for side in (golden, device)])
    sides = (*_bits(golden), *_bits(device))
    _tile(*sides, golden.shape[1], unit == BFLOAT16, addresses, steps, part.rows, part.ulps, part.counts)
    return part


def _bits(side: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As uint32, uint16 and float32, the wrong ones empty: so that one compilation serves every pair."""
    none = (len(side), 0)
    if side.dtype == BFLOAT16:
        return np.empty(none, np.uint32), side.view(np.uint16), np.empty(none, np.float32)
    return side.view(np.uint32), np.empty(none, np.uint16), side
