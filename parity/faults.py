"""Planted faults, one after the other: is each killed, by which gate, and is it placed where it sits?

A fault is killed by a verdict `fail`. A device that breaks down or leaves a check inconclusive was not caught:
whoever meets it learns nothing of the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from parity.batching import performed
from parity.compare import compare
from parity.compare.basis import Rerun
from parity.compare.places import judged_inputs, segment
from parity.compare.report import FAIL, WARN, Report
from parity.drive import run_device
from parity.errors import ParityError
from parity.factories import options_of
from parity.fault_choice import PlantableFault
from parity.gates import GATES, run_gate
from parity.gates.context import GateContext
from parity.golden.fields import Mode
from parity.golden.store import Dump
from parity.golden.views import GoldenSlice, TrustedGolden
from parity.guard import unguarded
from parity.partial import scratch
from parity.policy import read_policy
from parity.rounds import free_rounds
from parity.run_request import RunRequest
from parity.seam import Device
from parity.stages import TARGET_TOKENS

MODES: tuple[Mode, ...] = ("local", "chained")
HISTORIES = 60
"""Random histories of the rollback gate: a planted fault is no rare one."""


@dataclass(frozen=True)
class FaultComparison:
    """What one comparison made of a fault.

    Attributes:
        verdict: of the comparison, or `broke down: …`.
        first: stage and round where it first shows.
        due: the catalogue's stage and round (None: the golden decides).
        segment: the stages whose error shows first in that of `first`: it alone, where a device shows every stage.
        hidden: the catalogue's stage is not shown, or not whole, and a site of the fault lies in `segment`.
        own: failing stages outside the fault's sites that are not marked as inherited.
        inherited: how many are.
    """

    verdict: str
    first: tuple[str, int] | None
    due: tuple[str, int | None]
    own: tuple[str, ...] = ()
    inherited: int = 0
    segment: tuple[str, ...] = ()
    hidden: bool = False

    @property
    def placed(self) -> bool:
        """Failed at the place that the catalogue names, or the first one shown behind it, and accused no other."""
        if self.verdict != FAIL or self.first is None or self.own:
            return False
        return self.hidden or (self.first[0] == self.due[0] and self.due[1] in (None, self.first[1]))


@dataclass(frozen=True)
class FaultOutcome:
    """One fault's end; `comparisons` by mode, empty where the catalogue expects nothing of them.

    `precision` is that of the device it was planted in.
    """

    id: str
    gate: str
    killed: bool
    comparisons: dict[Mode, FaultComparison]
    text_changed: bool | None
    note: str = ""
    precision: str = "bfloat16"

    @property
    def placed(self) -> bool:
        """Placed in both modes, or a matter of its gate alone."""
        return all(seen.placed for seen in self.comparisons.values())

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return asdict(self) | {"placed": self.placed}


@dataclass(frozen=True)
class FaultRunRequest:
    """What faults are planted in, and what judges it.

    Args:
        build: makes the clean device: `build(precision=…, **options)`.
        rerun: as for `parity.compare.compare`; a device of which a part is hidden needs it.
    """

    golden: TrustedGolden
    device_name: str
    build: Callable[..., Device]
    modes: Sequence[Mode] = MODES
    rounds: int = 99
    rerun: Rerun | None = None


def run_faults(request: FaultRunRequest, faults: Sequence[PlantableFault]) -> Iterator[FaultOutcome]:
    """Plant each fault in a device of its own, and judge it."""
    clean: dict[tuple[str, int, int, str], list[tuple[int, ...]]] = {}
    for fault in faults:
        kind = fault.precision, fault.tp, fault.lanes, fault.loop
        if kind not in clean:
            clean[kind] = _emitted(request, _clean(request, fault)(precision=fault.precision))
        yield judge_fault(request, fault, clean[kind])


def judge_fault(request: FaultRunRequest, fault: PlantableFault, clean: list[tuple[int, ...]]) -> FaultOutcome:
    """One fault: both comparisons where it has a stage, its own gate where that is another one, and its text."""
    seen = {mode: compare_planted(request, fault, mode) for mode in request.modes if _due(fault, mode)[0]}
    gate, note = fault.gate, ""
    killed = any(comparison.verdict == FAIL for comparison in seen.values())
    if gate not in ("", "stages"):
        killed, note = _gate(request, fault)
    broken = [comparison.verdict for comparison in seen.values() if comparison.verdict.startswith("broke")]
    try:
        changed = _emitted(request, _planted(request, fault)(precision=fault.precision)) != clean
    except Exception as error:
        changed, note = None, note or f"free run broke down: {type(error).__name__}: {error}"
    return FaultOutcome(
        fault.id, gate, killed and not broken, seen, changed, broken[0] if broken else note, fault.precision
    )


def _clean(request: FaultRunRequest, fault: PlantableFault) -> Callable[..., Device]:
    """Makes the device that a fault is planted in; one without ranks, lanes or a second loop need not know the options.

    A device that is named with more ranks than the fault needs keeps them.
    """
    named = options_of(request.device_name).get("tp", "")
    ranks = max(fault.tp, int(named) if named.isdecimal() else 1)
    options: dict[str, Any] = {name: many for name, many in (("tp", ranks), ("lanes", fault.lanes)) if many > 1}
    options |= {"loop": fault.loop} if fault.loop else {}
    return partial(request.build, **options)


def _planted(request: FaultRunRequest, fault: PlantableFault) -> Callable[..., Device]:
    def build(**options: Any) -> Device:
        device = _clean(request, fault)(**options)
        fault.plant(unguarded(device))
        return device

    return build


def compare_planted(request: FaultRunRequest, fault: PlantableFault, mode: Mode) -> FaultComparison:
    """Prompt by prompt through one device, as a run does it, until a tensor shows the fault."""
    due = _due(fault, mode)
    seen, by_text = FaultComparison("nothing compared", None, due), None
    for precision in _precisions(request, fault):
        try:
            device = _planted(request, fault)(precision=precision)
            for case in _cases(request, fault):
                report = _report(case, device, mode, request.rerun)
                seen = _seen(case, report, fault, due)
                if seen.verdict != FAIL or not seen.first:  # constants that differ fail every prompt, and have no stage
                    continue
                if any(stage.verdict == FAIL for stage in report.stages):
                    return seen
                by_text = by_text or seen  # what it emits freely comes behind the prompt's tensors, and is no place
        except Exception as error:
            return FaultComparison(f"broke down: {error if isinstance(error, ParityError) else repr(error)}", None, due)
    return by_text or seen


def _cases(request: FaultRunRequest, fault: PlantableFault) -> list[TrustedGolden]:
    """Its prompts one by one; all at once where lanes have to have neighbours."""
    if fault.lanes > 1:
        return [request.golden]
    prompts = range(len(request.golden.manifest.case.prompts))
    return [GoldenSlice(request.golden, number, request.rounds) for number in prompts]


def _precisions(request: FaultRunRequest, fault: PlantableFault) -> tuple[str, ...]:
    """The fault's own; float32 before it where a part of the device is hidden, as it is to be used there."""
    hidden = bool(_clean(request, fault)(precision=fault.precision).describe().shown)
    return ("float32", "bfloat16") if hidden and fault.precision == "bfloat16" else (fault.precision,)


def _due(fault: PlantableFault, mode: Mode) -> tuple[str, int | None]:
    """Where the catalogue expects it; an empty stage where it expects nothing."""
    return (fault.stage, fault.round) if mode == "local" else (fault.chained, fault.chained_round)


def _report(case: TrustedGolden, device: Device, mode: Mode, rerun: Rerun | None) -> Report:
    with scratch("faults") as folder:
        run = Dump(run_device(RunRequest(device, case, mode, (), folder / "run")))
        return compare(case, run, read_policy(None, run.manifest.case.precision), rerun=rerun)


def _seen(golden: TrustedGolden, report: Report, fault: PlantableFault, due: tuple[str, int | None]) -> FaultComparison:
    """Sort the failing stages: the fault's own, those that inherit it, and those that are accused wrongly."""
    marks = {stage.stage: stage.marks for stage in report.stages if stage.verdict == FAIL}
    structural = {finding.stage for finding in report.findings if finding.kind not in ("generation", "config")}
    wrong = {stage.stage for stage in report.stages if stage.verdict in (WARN, FAIL)} | structural

    judged = {stage.stage for stage in report.stages}

    def inherits(stage: str) -> bool:
        behind = any(source in wrong for source in judged_inputs(stage, golden.declared, judged))
        return "inherited" in marks.get(stage, ()) or (report.mode == "chained" and stage in structural and behind)

    segments = {name: segment(name, golden.declared, judged) for name in {**marks, **dict.fromkeys(sorted(structural))}}
    outside = [name for name, hidden in segments.items() if not any(_at_home(fault, stage) for stage in hidden)]
    own = tuple(name for name in outside if not inherits(name))
    first = (report.first.stage, report.first.round) if report.first else None
    shown_in = tuple(segments.get(first[0], ())) if first else ()
    unseen = due[0] in {*report.not_shown, TARGET_TOKENS}  # of the prompt's tokens a verb returns the last one
    hidden = bool(report.not_shown) and unseen and any(_at_home(fault, stage) for stage in shown_in)
    return FaultComparison(report.verdict, first, due, own, len(outside) - len(own), shown_in, hidden)


def _at_home(fault: PlantableFault, stage: str) -> bool:
    return any(fnmatchcase(stage, site) for site in fault.sites)


def _gate(request: FaultRunRequest, fault: PlantableFault) -> tuple[bool, str]:
    """Whether the fault's own gate turns red, and what it says."""
    if fault.gate not in GATES:
        return False, f"there is no gate {fault.gate}"
    with scratch("faults") as folder:
        build = _planted(request, fault)
        made = request.golden, request.device_name, build, fault.precision, folder
        context = GateContext(*made, histories=HISTORIES, rerun=request.rerun)
        result = run_gate(context, fault.gate)
    checks = [check for check in result.checks if check.verdict == result.verdict]
    return result.verdict == FAIL, "; ".join(f"{check.name}: {check.evidence}" for check in checks[:1])


def _emitted(request: FaultRunRequest, device: Device) -> list[tuple[int, ...]]:
    """What a device emits freely over the golden's prompts."""
    case = request.golden.manifest.case
    scripts = (free_rounds(device, prompt.ids, case.max_new_tokens) for prompt in case.prompts)
    return [generated.emitted for _, generated in sorted(performed(device, enumerate(scripts)))]
