"""The pass compiled with numba, for float32 and bfloat16 in any combination.

A block of 4 KB stays in first-level cache while a few loops visit it, each small enough for LLVM to
vectorise; memory is read once, and the next block is prefetched meanwhile. The GIL is released.

For the ULP histogram every distance becomes one byte, its number of leading zeros; these are transposed to
planes of bits, in which a few logical operations and a population count deal with 64 elements at once.

numba caches the machine code on disk, beside this file or in NUMBA_CACHE_DIR, and renews it when this file
changes, but not when another does: so everything compiled stands here, however long, and so do the columns of
`parity.metrics.sums` that are compiled in (`TABLES`).

Integers are cast back to their width after every operation: numba's arithmetic promotes to 64 bits,
which costs a factor of four. Floats are compared as bits where both are non-negative: they order alike,
and integer maxima vectorise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from parity.arrays import Array, DType
from parity.metrics import sums as at
from parity.metrics.dtypes import BFLOAT16
from parity.metrics.sums import Partial

U16, U32, U64, I32 = np.uint16, np.uint32, np.uint64, np.int32
ABS, SIGN = U32(0x7FFFFFFF), U32(0x80000000)
BLOCK = 2048
"""Elements of bfloat16; half as many of float32, so that a page of memory is a block of either."""
CHAIN = 1024
"""float32 additions before a sum moves on to float64: 32 in each lane of four AVX2 registers, so that the
relative error stays below 1e-6."""
HALF = np.float32(0.5)
PLANES, WORDS = 5, 256
"""Bits of a code that are counted, and words of each that are collected before they are."""
SHARES = 8
"""Pieces in which the next block is prefetched: more requests at once than a core can have open would stall it."""
TABLES = (
    ("N", "G", "E", "AE", "EE", "GG", "GE", "MAX"),
    ("GOLDEN_NAN", "GOLDEN_INF", "DEVICE_NAN", "DEVICE_INF", "MISMATCHES", "FIRST", "ULP_MAX", "WORST"),
)
"""The columns of `sums` as they are compiled in: code from numba's cache would go on filling the old ones."""
if moved := [name for table in TABLES for column, name in enumerate(table) if getattr(at, name) != column]:
    raise ImportError(
        f"parity.metrics.sums moved {', '.join(moved)}: write the columns into parity/metrics/fused.py too"
    )
COUNTS_ZEROS = get_host_cpu_features().get("avx512cd", False)
"""Whether the processor counts leading zeros of a vector."""

# No reference counts: their atomic updates, two a slice, cost a quarter of the time. Hence no array is made here.
options: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy", "_nrt": False}
Compiled = TypeVar("Compiled", bound=Callable[..., Any])
jit: Callable[[Compiled], Compiled] = njit(**options)
# Sums may be reordered, which vectorises them; NaN and Inf keep their meaning.
sum_jit: Callable[[Compiled], Compiled] = njit(fastmath={"reassoc", "contract", "nsz"}, **options)
Views = tuple[Array, Array, Array]
Lowering = tuple[Any, Callable[..., Any]]


def instruction(generator: Callable[..., Lowering]) -> Callable[..., Any]:
    """An intrinsic as compiled code calls it: without the typing context, which its generator takes first."""
    return intrinsic(generator)


@instruction
def bits_of(_typing: Any, value: Any) -> Lowering:
    """The bits of a float32 as uint32."""
    return types.uint32(types.float32), lambda _, builder, __, args: builder.bitcast(args[0], ir.IntType(32))


@instruction
def float_of(_typing: Any, bits: Any) -> Lowering:
    """The float32 of which uint32 `bits` are the bits."""
    return types.float32(types.uint32), lambda _, builder, __, args: builder.bitcast(args[0], ir.FloatType())


@instruction
def prefetch(_typing: Any, address: Any) -> Lowering:
    """Ask for the cache line at an address; any address is allowed, none faults."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, number = cgutils.voidptr_t, ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        insert: Callable[..., Any] = cgutils.get_or_insert_function
        function = insert(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [builder.inttoptr(args[0], pointer), number(0), number(2), number(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@instruction
def count_zeros(_typing: Any, value: Any) -> Lowering:
    """Zero bits above the highest one of a uint32; 32 for zero."""
    return types.uint32(types.uint32), lambda _, builder, __, args: builder.ctlz(args[0], ir.IntType(1)(0))


@instruction
def ones(_typing: Any, value: Any) -> Lowering:
    """One bits of a uint64."""
    return types.uint64(types.uint64), lambda _, builder, __, args: builder.ctpop(args[0])


@instruction
def bit_of_64(_typing: Any, address: Any, bit: Any) -> Lowering:
    """A word of one bit each of the 64 bytes at an address: whether they share a one bit with `bit`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector, index = ir.VectorType(ir.IntType(8), 64), ir.IntType(32)
        codes = builder.load(builder.inttoptr(args[0], vector.as_pointer()), align=1)
        first = builder.insert_element(vector(ir.Undefined), builder.trunc(args[1], ir.IntType(8)), index(0))
        every = builder.shuffle_vector(first, first, ir.VectorType(index, 64)([0] * 64))
        matching = builder.icmp_unsigned("!=", builder.and_(codes, every), vector([0] * 64))
        return builder.bitcast(matching, ir.IntType(64))

    return types.uint64(types.int64, types.int64), generate


@jit
def leading_zeros(u: Any) -> Any:
    """The same, from the exponent of the number as a float where the processor cannot count.

    Clearing the bit below the leading one keeps the conversion from rounding up to a power of two; a half
    on top gives zero an exponent of its own; from 2^31 on the conversion, being signed, goes negative.
    """
    if COUNTS_ZEROS:
        return count_zeros(u)
    exponent = I32(bits_of(np.float32(I32(u & ~U32(u >> U32(1)))) + HALF) >> U32(23))
    return U32(max(I32(I32(158) - exponent), I32(0)))


@jit
def fetch_share(addresses: Array, steps: Array, block: int, start: int, share: int) -> None:
    """Prefetch one share of the block of both sides that begins at element `start`: eight lines of each, asked
    for twice, as a busy core drops requests."""
    first, apart = start + share * (block // SHARES), block // (16 * SHARES)
    golden, device = addresses[0] + first * steps[0], addresses[1] + first * steps[1]
    for _ in range(16):
        prefetch(golden)
        prefetch(device)
        golden += apart * steps[0]
        device += apart * steps[1]


@jit
def widen(single: Array, half: Array, out: Array) -> None:
    """float32 bits of a block that is either float32 or bfloat16; the other argument is empty."""
    for j in range(single.size):
        out[j] = single[j]
    for j in range(half.size):
        out[j] = U32(U32(half[j]) << U32(16))


@jit
def enter(sums: Array, n: int, g1: float, e1: float, ee: float, gg: float, ge: float) -> None:
    """Write row sums to their columns."""
    sums[at.N] = n
    sums[at.G] = g1
    sums[at.E] = e1
    sums[at.EE] = ee
    sums[at.GG] = gg
    sums[at.GE] = ge


@sum_jit
def moments(g: Array, d: Array, sums: Array) -> None:
    """Row sums in float64; EE or GG is not finite where an element is not (squares do not overflow)."""
    g1 = e1 = ee = gg = ge = 0.0
    for j in range(g.size):
        a = np.float64(g[j])
        e = np.float64(d[j]) - a
        g1 += a
        e1 += e
        ee += e * e
        gg += a * a
        ge += a * e
    enter(sums, g.size, g1, e1, ee, gg, ge)


@sum_jit
def chain(g: Array, d: Array) -> tuple[Any, Any]:
    """Sum and largest, as bits, of |d - g| in float32."""
    total, top = np.float32(0), U32(0)
    for j in range(g.size):
        m = abs(d[j] - g[j])
        total += m
        top = max(top, bits_of(m))
    return total, top


@jit
def absolute(g: Array, d: Array, sums: Array) -> Any:
    """Sum of |d - g|; returns the largest."""
    total, top = 0.0, U32(0)
    for start in range(0, g.size, CHAIN):
        part, largest = chain(g[start : start + CHAIN], d[start : start + CHAIN])
        total += part
        top = max(top, largest)
    worst = np.float64(float_of(top))
    if not np.isfinite(worst):
        total, worst = absolute_wide(g, d)
    sums[at.AE] = total
    return worst


@jit
def absolute_wide(g: Array, d: Array) -> tuple[Any, Any]:
    """The same in float64, for differences beyond the range of float32."""
    total, top = 0.0, 0.0
    for j in range(g.size):
        m = abs(np.float64(d[j]) - np.float64(g[j]))
        total += m
        top = max(top, m)
    return total, top


@sum_jit
def moments_apart(g: Array, e: Array, sums: Array) -> None:
    """`moments` from e = d - g in float32, which has half the conversions to float64: what takes longest here.

    Of bfloat16 such an e is exact, unless the two are 2^16 apart.
    """
    g1 = e1 = ee = gg = ge = 0.0
    for j in range(g.size):
        a = np.float64(g[j])
        b = np.float64(e[j])
        g1 += a
        e1 += b
        ee += b * b
        gg += a * a
        ge += a * b
    enter(sums, g.size, g1, e1, ee, gg, ge)


@sum_jit
def chain16(g: Array, d: Array, gf: Array, e: Array) -> tuple[Any, Any]:
    """`chain` from the bits of two bfloat16; writes g and e = d - g in float32."""
    total, top = np.float32(0), U32(0)
    for j in range(g.size):
        a = float_of(U32(U32(g[j]) << U32(16)))
        b = float_of(U32(U32(d[j]) << U32(16))) - a
        gf[j], e[j] = a, b
        m = abs(b)
        total += m
        top = max(top, bits_of(m))
    return total, top


@jit
def differences16(g: Array, d: Array, gf: Array, e: Array, sums: Array) -> Any:
    """`absolute` from the bits of two bfloat16; writes g and e as `chain16` does."""
    total, top = 0.0, U32(0)
    for start in range(0, g.size, CHAIN):
        stop = start + CHAIN
        part, largest = chain16(g[start:stop], d[start:stop], gf[start:stop], e[start:stop])
        total += part
        top = max(top, largest)
    sums[at.AE] = total
    return np.float64(float_of(top))


@jit
def find(g: Array, d: Array, worst: float) -> int:
    """Where |d - g| is `worst`, in the precision either function above found it."""
    for j in range(g.size):
        if abs(d[j] - g[j]) == worst or abs(np.float64(d[j]) - np.float64(g[j])) == worst:
            return j
    return 0


@jit
def compact(
    gf: Array, df: Array, g: Array, d: Array, gb: Array, db: Array, keep: Array, counts: Array, start: int
) -> int:
    """Count non-finite elements, copy the bits of finite pairs to `gb`, `db`; returns how many."""
    n = 0
    for j in range(gf.size):
        a, b = gf[j], df[j]
        if np.isfinite(a) and np.isfinite(b):
            gb[n], db[n], keep[n] = g[j], d[j], j
            n += 1
            continue
        counts[at.GOLDEN_NAN] += np.isnan(a)
        counts[at.GOLDEN_INF] += np.isinf(a)
        counts[at.DEVICE_NAN] += np.isnan(b)
        counts[at.DEVICE_INF] += np.isinf(b)
        if a != b and not (np.isnan(a) and np.isnan(b)):
            counts[at.MISMATCHES] += 1
            if counts[at.FIRST] < 0:
                counts[at.FIRST] = start + j
    return n


@jit
def narrow(bits: Array, out: Array) -> None:
    """float32 bits to bfloat16 ones, nearest even."""
    for j in range(bits.size):
        b = bits[j]
        out[j] = U16(U32(U32(b + U32(0x7FFF)) + U32(U32(b >> U32(16)) & U32(1))) >> U32(16))


@jit
def distances32(g: Array, d: Array, codes: Array) -> Any:
    """Leading zeros of the ULP distances of float32; returns the largest distance."""
    top = U32(0)
    for j in range(g.size):
        x = U32(g[j] & ABS)
        y = U32(d[j] & ABS)
        low = min(x, y)
        high = max(x, y)
        u = U32(high + low) if I32(g[j] ^ d[j]) < 0 else U32(high - low)
        top = max(top, u)
        codes[j] = leading_zeros(u)
    return top


@jit
def distances16(g: Array, d: Array, codes: Array) -> Any:
    """The same for bfloat16; leading zeros still of 32 bits."""
    top = U16(0)
    for j in range(g.size):
        x = U16(g[j] & U16(0x7FFF))
        y = U16(d[j] & U16(0x7FFF))
        low = min(x, y)
        high = max(x, y)
        u = U16(high + low) if np.int16(g[j] ^ d[j]) < 0 else U16(high - low)
        top = max(top, u)
        codes[j] = leading_zeros(U32(u))
    return U32(top)


@jit
def slice_bits(codes: Array, planes: Array) -> int:
    """Transpose the low five bits of 64 codes at a time to one word each; returns how many of each."""
    address = codes.ctypes.data
    words = codes.size // 64
    for j in range(words):
        for bit in range(PLANES):
            planes[bit, j] = bit_of_64(address, 1 << bit)
        address += 64
    return words


@jit
def count_eight(planes: Array, words: int, group: int, ulps: Array) -> Any:
    """Count the codes whose upper two bits are `group`; returns how many there are."""
    a, b, c, d, e = planes[0, :words], planes[1, :words], planes[2, :words], planes[3, :words], planes[4, :words]
    flip_d, flip_e = U64((group & 1) - 1), U64((group >> 1) - 1)
    n0 = n1 = n2 = n3 = n4 = n5 = n6 = n7 = U64(0)
    for j in range(words):
        chosen = (d[j] ^ flip_d) & (e[j] ^ flip_e)
        even, odd = chosen & ~a[j], chosen & a[j]
        w0, w1, w2, w3 = even & ~b[j], odd & ~b[j], even & b[j], odd & b[j]
        n0, n4 = n0 + ones(w0 & ~c[j]), n4 + ones(w0 & c[j])
        n1, n5 = n1 + ones(w1 & ~c[j]), n5 + ones(w1 & c[j])
        n2, n6 = n2 + ones(w2 & ~c[j]), n6 + ones(w2 & c[j])
        n3, n7 = n3 + ones(w3 & ~c[j]), n7 + ones(w3 & c[j])
    for k, n in enumerate((n0, n1, n2, n3, n4, n5, n6, n7)):
        ulps[-(8 * group + k) & 31] += n
    return n0 + n1 + n2 + n3 + n4 + n5 + n6 + n7


@jit
def count(planes: Array, words: int, half: bool, ulps: Array) -> None:
    """Count the codes in `planes`; those of bfloat16 are 16 or more, or zero."""
    counted = U64(0)
    for group in range(2 if half else 0, 4):
        counted += count_eight(planes, words, group, ulps)
    ulps[0] += 64 * words - counted


@jit
def count_rest(codes: Array, words: int, furthest: Any, ulps: Array) -> None:
    """Count what `planes` does not hold: the last few codes, and code 0, which it takes for 32."""
    for j in range(64 * words, codes.size):
        ulps[32 - codes[j]] += 1
    if furthest >= SIGN:
        for j in range(64 * words):
            ulps[0] -= codes[j] == 0
            ulps[32] += codes[j] == 0


@jit
def _tile(
    golden: Views,
    device: Views,
    columns: int,
    half: bool,
    addresses: Array,
    steps: Array,
    scratch: tuple[Array, ...],
    rows: Array,
    counts: Array,
    ulps: Array | None,
) -> None:
    """Fold a tile into `rows`, `counts` and, unless it is None, `ulps`; see `fold`.

    Numba compiles a variant of its own for None, which has no line of what only counts ULPs.
    """
    g32, g16, gf32 = golden
    d32, d16, df32 = device
    gb, db, gf, df, gh, dh, keep, codes, planes, sums, apart = scratch
    block = BLOCK if half else BLOCK // 2
    both = half and g16.shape[1] == d16.shape[1]
    filled, best = 0, -1.0
    for r in range(rows.shape[0]):
        for c in range(0, columns, block):
            n = min(block, columns - c)
            after = r * columns + c + block
            fetch_share(addresses, steps, block, after, 0)
            if half:
                g, d, gx, dx = gb[:n], db[:n], gf[:n], df[:n]
            else:
                g, d, gx, dx = g32[r, c : c + n], d32[r, c : c + n], gf32[r, c : c + n], df32[r, c : c + n]
            if half and not both:
                widen(g32[r, c : c + n], g16[r, c : c + n], gb[:n])
                widen(d32[r, c : c + n], d16[r, c : c + n], db[:n])
            fetch_share(addresses, steps, block, after, 1)
            worst = 0.0
            if both:
                worst = differences16(g16[r, c : c + n], d16[r, c : c + n], gf[:n], apart[:n], sums)
            else:
                moments(gx, dx, sums)
            fetch_share(addresses, steps, block, after, 2)
            if both:
                moments_apart(gx, apart[:n], sums)
            elif np.isfinite(sums[at.EE] + sums[at.GG]):
                worst = absolute(gx, dx, sums)
            fetch_share(addresses, steps, block, after, 3)
            kept = not np.isfinite(sums[at.EE] + sums[at.GG])
            if both and (kept or worst > best):
                widen(g32[r, :0], g16[r, c : c + n], gb[:n])
                widen(d32[r, :0], d16[r, c : c + n], db[:n])
            if kept:
                n = compact(gx, dx, g, d, gb, db, keep, counts, r * columns + c)
                g, d, gx, dx = gb[:n], db[:n], gf[:n], df[:n]
                moments(gx, dx, sums)
                worst = absolute(gx, dx, sums)
            fetch_share(addresses, steps, block, after, 4)
            for column in range(at.MAX):
                rows[r, column] += sums[column]
            rows[r, at.MAX] = max(rows[r, at.MAX], worst)
            if n and worst > best:
                best = worst
                place = find(gx, dx, worst)
                counts[at.WORST] = r * columns + c + (keep[place] if kept else place)
            if ulps is not None:
                if half:
                    gs, ds = g16[r, c : c + n], d16[r, c : c + n]
                    if kept or gs.size < n:
                        narrow(g, gh)
                        gs = gh[:n]
                    if kept or ds.size < n:
                        narrow(d, dh)
                        ds = dh[:n]
                    furthest = distances16(gs, ds, codes)
                else:
                    furthest = distances32(g, d, codes)
                fetch_share(addresses, steps, block, after, 5)
                counts[at.ULP_MAX] = max(counts[at.ULP_MAX], np.int64(furthest))
                words = slice_bits(codes[:n], planes[:, filled:])
                fetch_share(addresses, steps, block, after, 6)
                count_rest(codes[:n], words, furthest, ulps)
                filled += words
                if filled + BLOCK // 64 > WORDS:
                    count(planes, filled, half, ulps)
                    filled = 0
            else:
                fetch_share(addresses, steps, block, after, 5)
                fetch_share(addresses, steps, block, after, 6)
            fetch_share(addresses, steps, block, after, 7)
    if ulps is not None:
        count(planes, filled, half, ulps)


def supports(golden: DType, device: DType) -> bool:
    """Whether both sides are float32 or bfloat16."""
    return all(dtype in (BFLOAT16, np.float32) for dtype in (golden, device))


def fold(golden: Array, device: Array, unit: DType | None) -> Partial:
    """Sums of one tile, as `sums.fold`; float32 or bfloat16 [R, C], C-contiguous."""
    part = Partial.empty(len(golden))
    half = BFLOAT16 in (golden.dtype, device.dtype)
    addresses = np.array([side.ctypes.data for side in (golden, device)])
    steps = np.array([side.itemsize for side in (golden, device)])
    tables = part.rows, part.counts, None if unit is None else part.ulps
    _tile(_bits(golden), _bits(device), golden.shape[1], half, addresses, steps, _scratch(), *tables)
    return part


def _scratch() -> tuple[Array, ...]:
    """What a tile works in."""
    gb, db = np.empty((2, BLOCK), np.uint32)
    gh, dh = np.empty((2, BLOCK), np.uint16)
    keep, codes = np.empty(BLOCK, np.int32), np.empty(BLOCK, np.uint8)
    planes, sums, apart = np.empty((PLANES, WORDS), np.uint64), np.zeros(at.WIDTH), np.empty(BLOCK, np.float32)
    return gb, db, gb.view(np.float32), db.view(np.float32), gh, dh, keep, codes, planes, sums, apart


def _bits(side: Array) -> Views:
    """As uint32, uint16 and float32, the wrong ones empty, all read-only: one compilation serves every pair."""
    none = (len(side), 0)
    if side.dtype == BFLOAT16:
        views = np.empty(none, np.uint32), side.view(np.uint16), np.empty(none, np.float32)
    else:
        views = side.view(np.uint32), np.empty(none, np.uint16), side.view()
    for view in views:
        view.flags.writeable = False
    return views
