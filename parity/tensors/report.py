"""What a comparison of tensors came to: typed, as JSON, and as one readable message."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from parity.metrics.record import plain_numbers
from parity.plain import printable
from parity.tensors.presets import Bounds

Index = tuple[int, ...]
Verdict = Literal["pass", "fail", "inconclusive"]

SHOWN = 10
"""Tensors that a message tells of."""


def shown(name: str) -> str:
    """A tensor's name, where it may have none."""
    return name or "a tensor without a name (a single array)"


@dataclass(frozen=True)
class Element:
    """One element: its index, its value on both sides, how many units in the last place of `unit` they are apart.

    `ulp` is None where they have no such distance: integers, NaN, infinities.
    """

    index: Index
    expected: float
    actual: float
    ulp: int | None = None
    unit: str = ""

    def __str__(self) -> str:
        apart = abs(self.actual - self.expected)
        relative = f" = {apart / abs(self.expected):.3g} of it" if self.expected and apart < float("inf") else ""
        ulp = f" = {self.ulp} ULP of {self.unit}" if self.ulp is not None else ""
        values = f"expected {_figure(self.expected)}, actual {_figure(self.actual)}"
        return f"{list(self.index)}: {values}, off by {_figure(apart, 3)}{relative}{ulp}"


def _figure(value: float, digits: int = 9) -> str:
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}"


@dataclass(frozen=True)
class TensorResult:
    """What was found of one tensor.

    Attributes:
        name: in the mapping or file; '' of a single array.
        shape, dtype: of the expected one.
        reasons: why it fails, a sentence each; empty where it passes.
        l2, worst_row, largest: see `parity.tensors.Bounds`; 0 for integers that agree, inf for others; None where
            nothing could be measured.
        bounds: what the three may be at most; None for integers and truth values.
        worst: the element that is furthest off.
        first_bad: in C order the first element that is off by more than a passing tensor's would be on average.
        hidden: of expected's elements that are not zero, the share so small beside their row that no error of it shows.
    """

    name: str
    shape: Index
    dtype: str
    reasons: tuple[str, ...] = ()
    l2: float | None = None
    worst_row: float | None = None
    largest: float | None = None
    bounds: Bounds | None = None
    worst: Element | None = None
    first_bad: Element | None = None
    hidden: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """`pass` or `fail`."""
        return "fail" if self.reasons else "pass"

    def __str__(self) -> str:
        head = f"{self.name or 'tensor'} {self.dtype}{list(self.shape)}"
        lines = [f"{head}: {'; '.join(self.reasons) or 'pass'}"]
        lines += [f"  worst element {self.worst}"] if self.worst and self.reasons else []
        lines += [f"  first bad element {self.first_bad}"] if self.first_bad else []
        return "\n".join(lines)


@dataclass(frozen=True)
class TensorReport:
    """Every tensor's result, and what is wrong with the two sides as a whole. True where all of it passes.

    Attributes:
        results: in the order of `expected`.
        missing, surplus: names that only expected has, and only actual.
        blind: what the bounds used do not see.
        ignored: names that a map leaves out, and why.
    """

    results: tuple[TensorResult, ...]
    missing: tuple[str, ...]
    surplus: tuple[str, ...]
    blind: tuple[str, ...]
    ignored: dict[str, str] = field(default_factory=dict)

    @property
    def reasons(self) -> tuple[str, ...]:
        """What is wrong with the names of the two sides, a sentence each."""
        none = () if self.results or self.missing else ("expected holds no tensor: nothing is compared",)
        missing = (f"{shown(name)} is missing in actual" for name in self.missing)
        surplus = (f"{shown(name)} is surplus: expected does not have it" for name in self.surplus)
        return (*none, *missing, *surplus)

    @property
    def failed(self) -> tuple[TensorResult, ...]:
        """Results that fail, worst first: what could not be measured, then by relative L2."""
        bad = [result for result in self.results if result.reasons]
        return tuple(sorted(bad, key=lambda result: -(float("inf") if result.l2 is None else result.l2)))

    @property
    def verdict(self) -> Verdict:
        """`pass` only where all tensors pass and both sides have the same names; `inconclusive`: none was compared."""
        if not self.results:
            return "inconclusive"
        return "fail" if self.reasons or self.failed else "pass"

    @property
    def exit_code(self) -> int:
        """0 for a pass, 1 for a failure, 3 where it is inconclusive."""
        return {"pass": 0, "fail": 1, "inconclusive": 3}[self.verdict]

    def __bool__(self) -> bool:
        return self.verdict == "pass"

    def __str__(self) -> str:
        failed = self.failed
        tensors = f"{len(self.results)} tensor{'s' * (len(self.results) != 1)}"
        counted = f"{len(failed)} of {tensors} out of bounds" if failed else f"{tensors} compared"
        lines = [f"actual {'matches' if self else 'does not match'} expected: {counted}", *self.reasons[:SHOWN]]
        lines += [f"… and {len(self.reasons) - SHOWN} more names"] if len(self.reasons) > SHOWN else []
        lines += [str(result) for result in failed[:SHOWN]]
        lines += [f"… and {len(failed) - SHOWN} more"] if len(failed) > SHOWN else []
        lines += [f"not seen: {what}" for what in self.blind]
        return "\n".join(printable(line) for line in lines)

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        results = [asdict(result) | {"verdict": result.verdict} for result in self.results]
        plain: dict[str, Any] = plain_numbers(
            asdict(self) | {"results": results, "reasons": self.reasons, "verdict": self.verdict}
        )
        return plain
