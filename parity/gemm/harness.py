"""Runs multiplications on a device and judges them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from parity.compare.report import FAIL, PASS, conclude
from parity.errors import DeviceEnded, DeviceFailed, ParityError
from parity.gemm.errors import DTYPES, GemmErrors, measure_errors, pieces
from parity.raised import raised_text
from parity.seam import Gemm, Multiply

# A bfloat16 result that was rounded once is the floor's own rounding, element for element: the ratio is 1.00. One
# rounding more (two partial sums kept in bfloat16) gives 1.48, truncation 2.0, a bfloat16 accumulator over 512 terms
# 16.
#
# A float32 result depends on the order of the sum; the floor's is the worst usual one. The ratio of two honest
# orders over the 30 elements of the smallest router spreads by 18 %, three deviations of which are 1.6. What drops
# bits (bfloat16 or TF32 operands, a bfloat16 accumulator) is a hundred times the floor and more.
NOISE = {"bfloat16": 1.2, "float32": 2.0}
"""Largest root mean square error, x the floor's."""
# Half a ULP is the most that one rounding can err, and both sides have it. The largest of normal errors over a few
# elements spreads more than their mean square.
WORST = {"bfloat16": 1.5, "float32": 4.0}
"""Largest error of one element, x the floor's largest."""
# The largest of up to 8192 sums was 5.0 in 60 honest runs; 8 leaves room for a million. A tile of 16 wrong columns
# among 50,000 was at 40 or more in 6 runs, one wrong element above 8 in all of 30 runs where it was off by half of the
# usual result or more.
SUMS = 8.0
"""Largest error of a signed sum along a row, x the floor's error times the root of its columns: one standard deviation
where errors are independent."""


@dataclass(frozen=True)
class GemmResult:
    """One shape on one device.

    Args:
        verdict: pass or fail.
        pieces: into how many it was cut to fit memory; 1 is the shape itself.
        judged: elements compared with float64 one by one.
        noise, worst, sums: the three figures that `NOISE`, `WORST` and `SUMS` bound.
        rms_ulp, max_ulp: the error in ULP of bfloat16; an element below the root mean square of the results counts
            in the ULP of that, for cancellation makes its own one meaningless.
        why: what failed; empty for a pass.
    """

    gemm: Gemm
    verdict: str
    pieces: int = 0
    judged: int = 0
    noise: float = float("nan")
    worst: float = float("nan")
    sums: float = float("nan")
    rms_ulp: float = float("nan")
    max_ulp: float = float("nan")
    why: str = ""


@dataclass(frozen=True)
class GemmReport:
    """All shapes on one device, joined by AND; none at all is inconclusive."""

    device: str
    seed: int
    results: tuple[GemmResult, ...]

    @property
    def verdict(self) -> str:
        """The worst of all."""
        return conclude(result.verdict for result in self.results)

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return asdict(self) | {"verdict": self.verdict, "bounds": {"noise": NOISE, "worst": WORST, "sums": SUMS}}


def try_gemm(gemm: Gemm, multiply: Multiply, seed: int, limit: int) -> GemmResult:
    """One shape; a device that raises or returns something else than [.., M, N] of the declared dtype fails."""
    parts = []
    for piece in pieces(gemm, seed, limit):
        try:
            operands = piece.left.copy(), piece.right.copy()  # a device may overwrite its own
            result = np.asarray(multiply(*operands, gemm.dtype))
        except Exception as error:  # whatever a device's own code may raise
            if isinstance(error, ParityError) and (
                isinstance(error, DeviceEnded) or not isinstance(error, DeviceFailed)
            ):
                raise
            return GemmResult(gemm, FAIL, why=f"raised {raised_text(error)}")
        wanted = (*piece.right.shape[:-2], gemm.m, piece.right.shape[-1])
        if result.shape != wanted or result.dtype != DTYPES[gemm.dtype]:
            got, asked = f"{result.dtype}{list(result.shape)}", f"{gemm.dtype}{list(wanted)}"
            return GemmResult(gemm, FAIL, why=f"returned {got} where the program says {asked}")
        parts.append(measure_errors(piece, result, gemm.dtype, np.random.default_rng([seed, piece.number])))
    return judge_gemm(gemm, parts)


def judge_gemm(gemm: Gemm, parts: list[GemmErrors]) -> GemmResult:
    """The verdict over all pieces."""
    device, floor, exact = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("device", "floor", "exact")
    )
    rms = _rms(exact)
    # The floor of a few exact sums may be zero; the rounding of the result never is, on average.
    step = np.finfo(np.float32).eps if gemm.dtype == "float32" else 2.0**-7
    quiet = max(_rms(floor), rms * step / 12**0.5 / 2)
    unit = bfloat16_ulp(np.maximum(np.abs(exact), rms))
    with np.errstate(all="ignore"):
        figures = {
            "noise": _rms(device) / quiet,
            "worst": np.max(np.abs(device) / unit) / max(np.max(np.abs(floor) / unit), step / 2.0**-7 / 2),
            "sums": max(np.max(np.abs(part.sums)) / quiet for part in parts),
            "rms_ulp": _rms(device / unit),
            "max_ulp": np.max(np.abs(device) / unit),
        }
    bounds = {"noise": NOISE[gemm.dtype], "worst": WORST[gemm.dtype], "sums": SUMS}
    # Written so that NaN fails.
    above = [f"{name} {figures[name]:.3g} > {bound:g}" for name, bound in bounds.items() if not figures[name] <= bound]
    plain = {name: float(value) for name, value in figures.items()}
    return GemmResult(gemm, FAIL if above else PASS, len(parts), device.size, **plain, why=", ".join(above))


def bfloat16_ulp(values: np.ndarray) -> np.ndarray:
    """The ULP of bfloat16 at positive values, float64."""
    steps: np.ndarray = np.ldexp(1.0, np.frexp(values)[1] - 8)
    return steps


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
