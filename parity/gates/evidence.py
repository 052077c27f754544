"""What a gate found: checks, each with a verdict and the figures behind it, joined by AND."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from parity.compare.report import ROUNDED, Place, conclude, exit_code


@dataclass(frozen=True)
class Check:
    """One thing a gate looked at.

    Attributes:
        name: what was asked, in a few words.
        verdict: pass, warn, fail, inconclusive or not judged.
        evidence: one line a person can act on: counts, figures with units, what could not be seen and why.
        figures: the same and more, for JSON; plain numbers, strings, lists and dicts.
        place: where it first shows, for a failure.
        exact: the device was judged in float32, though the run is in another precision.
    """

    name: str
    verdict: str
    evidence: str
    figures: dict[str, Any] = field(default_factory=dict)
    place: Place | None = None
    exact: bool = False


@dataclass(frozen=True)
class GateResult:
    """One gate: its verdict is that of its worst check; a gate without a check is inconclusive."""

    gate: str
    checks: tuple[Check, ...]
    reproduce: str = ""

    @property
    def verdict(self) -> str:
        """The worst verdict of the checks."""
        return conclude(check.verdict for check in self.checks)

    @property
    def first(self) -> Check | None:
        """The first check that is as bad as the gate."""
        return next((check for check in self.checks if check.verdict == self.verdict), None)


@dataclass(frozen=True)
class GateReport:
    """All gates that ran over one device and golden, joined by AND."""

    device: str
    precision: str
    golden: str
    results: tuple[GateResult, ...]

    @property
    def verdict(self) -> str:
        """The worst verdict of the gates."""
        return conclude(result.verdict for result in self.results)

    @property
    def unseen(self) -> tuple[str, ...]:
        """What these gates do not show of a device that they judged in bfloat16 alone."""
        exact = any(check.exact for result in self.results for check in result.checks)
        return () if exact or self.precision != "bfloat16" else (ROUNDED,)

    @property
    def exit_code(self) -> int:
        """0 pass (or warn), 1 fail, 3 inconclusive or disputed."""
        return exit_code(self.verdict)

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        gates = [asdict(result) | {"verdict": result.verdict} for result in self.results]
        return asdict(self) | {
            "results": gates,
            "verdict": self.verdict,
            "unseen": self.unseen,
            "exit_code": self.exit_code,
        }
