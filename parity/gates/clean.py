"""False alarms of gates: clean devices, unlike in rounding alone, through a gate, a few prompts at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, WARN, conclude
from parity.gates.context import GateContext
from parity.gates.gate import run_gate
from parity.golden.views import GoldenSlice, JoinedGoldens, TrustedGolden
from parity.partial import scratch
from parity.progress import Progress, quiet

PROMPTS = 3
"""Of a run of a gate: as many as the batch gate has lanes."""


@dataclass(frozen=True)
class CleanGates:
    """What to run: `context` makes what a gate judges of a clean device by name, over a part of the golden.

    The folder that it takes is for the runs of that one gate.
    """

    golden: TrustedGolden
    context: Callable[[TrustedGolden, str, Path], GateContext]
    names: Sequence[str]
    gates: Sequence[str]
    runs: int
    progress: Progress = quiet


@dataclass(frozen=True)
class GateRun:
    """One gate over one clean device.

    Attributes:
        checks, judged: how many there were, and those that gave a verdict.
        verdict: the worst of those; *not judged* where there is none.
        said: the first check that does not pass, in words.
    """

    gate: str
    device: str
    prompts: tuple[str, ...]
    checks: int
    judged: int
    verdict: str
    said: str = ""


@dataclass
class GateCalibration:
    """What clean runs of gates found."""

    golden: str
    runs: list[GateRun] = field(default_factory=list)

    @property
    def judged(self) -> list[GateRun]:
        """Those in which the gate gave a verdict."""
        return [run for run in self.runs if run.judged]

    @property
    def alarms(self) -> list[GateRun]:
        """Clean runs that do not pass."""
        return [run for run in self.judged if run.verdict in (FAIL, INCONCLUSIVE)]

    @property
    def warned(self) -> list[GateRun]:
        """Clean runs that pass with a warning; alarms under --strict."""
        return [run for run in self.judged if run.verdict == WARN]

    def exit_code(self, strict: bool = False) -> int:
        """1 with any false alarm, 3 where nothing was judged."""
        return int(bool(self.alarms or (strict and self.warned))) if self.judged else 3

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        counts = {"judged": len(self.judged), "alarms": len(self.alarms), "warned": len(self.warned)}
        return asdict(self) | counts


def clean_gates(request: CleanGates) -> GateCalibration:
    """Run the gates over clean devices; all devices and gates on a few prompts before the next ones."""
    found = GateCalibration(str(request.golden.folder))
    total = min(request.runs, len(request.golden.manifest.case.prompts) * len(request.names) * len(request.gates))
    for number, (case, name, gate) in enumerate(islice(_cases(request), request.runs)):
        prompts = tuple(prompt.id for prompt in case.manifest.case.prompts)
        request.progress(number, total, f"{gate} {name} {', '.join(prompts)}")
        with scratch("calibrate") as folder:
            found.runs.append(_run(gate, name, prompts, request.context(case, name, folder)))
    request.progress(total, total, "")
    return found


def _cases(request: CleanGates) -> Iterator[tuple[TrustedGolden, str, str]]:
    """Each prompt with those behind it, in turn."""
    golden, case = request.golden, request.golden.manifest.case
    for first in range(len(case.prompts)):
        numbers = [(first + place) % len(case.prompts) for place in range(min(PROMPTS, len(case.prompts)))]
        counts = [len(case.prompts[each].generated.acceptance_length) for each in numbers]
        slices = zip(numbers, counts, strict=True)  # whole: a text cut short contradicts what a device emits freely
        part = JoinedGoldens([GoldenSlice(golden, each, count, case.max_new_tokens) for each, count in slices])
        yield from ((part, name, gate) for name in request.names for gate in request.gates)


def _run(gate: str, name: str, prompts: tuple[str, ...], context: GateContext) -> GateRun:
    checks = run_gate(context, gate).checks
    judged = [check for check in checks if check.verdict != NOT_JUDGED]
    verdict = conclude(check.verdict for check in judged) if judged else NOT_JUDGED
    worst = next((check for check in judged if check.verdict in (FAIL, INCONCLUSIVE, WARN)), None)
    said = f"{worst.name}: {worst.evidence}" if worst else ""
    return GateRun(gate, name, prompts, len(checks), len(judged), verdict, said)
