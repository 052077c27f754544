"""Runs operations on a device and judges them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parity.compare.report import FAIL, INCONCLUSIVE, PASS, WARN, conclude
from parity.errors import DeviceEnded, DeviceFailed, NotOffered, ParityError
from parity.ops.bounds import element_errors, rounds
from parity.ops.cutting import cut_to, largest
from parity.ops.exact import expected, written_twice
from parity.ops.kinds import DTYPES, KNOWN, SMALLEST
from parity.ops.operands import operands
from parity.raised import raised_text
from parity.seam import Operand, Operate, Operation


@dataclass(frozen=True)
class OperationResult:
    """One operation on one device.

    Args:
        verdict: pass, fail, warn for the right values in another dtype, inconclusive for what was not run.
        judged: elements that were compared.
        exact: whether they must be the operands' own; else `ulp` is judged.
        wrong: elements beyond their bound.
        ulp: the largest error, in ULP of the declared dtype; NaN where nothing was computed.
        of_bound: the largest error, x its bound.
        cut: the operation that ran in its place, smaller; empty for itself.
        why: what failed; empty for a pass.
    """

    operation: Operation
    verdict: str
    judged: int = 0
    exact: bool = True
    wrong: int = 0
    ulp: float = float("nan")
    of_bound: float = float("nan")
    cut: str = ""
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """All of it, the operation in a line."""
        return {**vars(self), "operation": str(self.operation), "results": [str(one) for one in self.operation.results]}


@dataclass(frozen=True)
class OperationReport:
    """All operations on one device, joined by AND; none at all is inconclusive."""

    device: str
    seed: int
    results: tuple[OperationResult, ...]

    @property
    def verdict(self) -> str:
        """The worst of all."""
        return conclude(result.verdict for result in self.results)

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        results = [result.to_dict() for result in self.results]
        return {"device": self.device, "seed": self.seed, "verdict": self.verdict, "results": results}


def try_operation(operation: Operation, operate: Operate, seed: int, limit: int) -> OperationResult:
    """One operation on every case; a device that raises, or returns something else than what is declared, fails."""
    if unknown := _unknown(operation):
        return OperationResult(operation, INCONCLUSIVE, why=unknown)
    ran = cut_to(operation, limit)
    if ran is None:
        most = f"it has an array of {largest(operation)} elements, more than --limit {limit}, and cannot be cut"
        return OperationResult(operation, INCONCLUSIVE, why=most)
    result = OperationResult(operation, PASS, exact=not rounds(operation), cut="" if ran is operation else str(ran))
    for case, arrays in operands(ran, seed):
        due = [one.copy() for one in arrays]
        try:
            with np.errstate(all="ignore"):  # operands overflow on purpose
                given = operate(ran, *arrays)
        except NotOffered as error:
            return replace(result, verdict=INCONCLUSIVE, why=str(error))
        except Exception as error:  # whatever a device's own code may raise
            if isinstance(error, ParityError) and (
                isinstance(error, DeviceEnded) or not isinstance(error, DeviceFailed)
            ):
                raise
            return replace(result, verdict=FAIL, why=f"raised {raised_text(error)}")
        result = _judged(result, ran, case, due, given)
    return result


def _unknown(operation: Operation) -> str:
    """Why nothing is known of what it should give; empty where it is."""
    if operation.name not in KNOWN:
        return f"there is no rule for {operation.name}"
    strange = sorted({one.dtype for one in (*operation.operands, *operation.results)} - set(DTYPES))
    return f"there is no rule for {', '.join(strange)}" if strange or not operation.operands else ""


def _judged(
    result: OperationResult, ran: Operation, case: str, arrays: Sequence[np.ndarray], given: Any
) -> OperationResult:
    """The result with what one case adds to it; the first thing that is wrong stays."""
    made = list(given) if isinstance(given, list | tuple) else [given]
    if len(made) != len(ran.results):
        return replace(result, verdict=FAIL, why=result.why or f"returned {len(made)} results, not {len(ran.results)}")
    for declared, got, true in zip(ran.results, map(np.asarray, made), expected(ran, arrays), strict=True):
        lack = _undeclared(declared, got)
        if lack and (got.shape != declared.shape or declared.dtype in ("bfloat16", "float32")):
            return replace(result, verdict=FAIL, why=result.why or lack)
        if lack and result.verdict == PASS:
            result = replace(result, verdict=WARN, why=f"{lack}; the values are right")
        errors, bounds, units = element_errors(ran, arrays, got, true)
        bad = ~(errors <= bounds)  # written so that NaN fails
        if (free := written_twice(ran, arrays)) is not None:
            bad &= ~free
        result = _added(result, errors, bounds, units, bad)
        if bad.any():
            at = tuple(map(int, np.unravel_index(int(bad.argmax()), bad.shape)))
            what = f"{int(bad.sum())} of {bad.size} elements are wrong ({case}), first {list(at)}"
            why = result.why if result.verdict == FAIL else f"{what}: {got[at]} where {true[at]} is right"
            result = replace(result, verdict=FAIL, why=why)
    return result


def _undeclared(declared: Operand, got: np.ndarray) -> str:
    """How a result's shape or dtype differs from what the program says; of integers any width will do."""
    same = got.dtype.kind == "i" if declared.dtype == "int32" else got.dtype == DTYPES[declared.dtype]
    if got.shape == declared.shape and same:
        return ""
    return f"returned {Operand(got.shape, got.dtype.name)} where the program says {declared}"


def _added(result: OperationResult, errors: Any, bounds: Any, units: Any, bad: Any) -> OperationResult:
    counted = replace(result, judged=result.judged + bad.size, wrong=result.wrong + int(bad.sum()))
    if result.exact or not bad.size:
        return counted
    with np.errstate(all="ignore"):
        told = np.isfinite(errors) & (errors > SMALLEST)
        ulp, share = (np.max(errors / one, where=told & (one > 0), initial=0.0) for one in (units, bounds))
    return replace(counted, ulp=float(np.fmax(result.ulp, ulp)), of_bound=float(np.fmax(result.of_bound, share)))
