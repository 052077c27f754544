"""False alarms: clean devices, which differ in nothing but rounding, compared with a golden one case at a time.

One *comparison* is the whole verdict that `parity diff` gives over one case: one prompt cut to a few rounds (of a
device with lanes one for each), one clean device, one mode; every declared stage is judged in it. Few rows make the
statistics noisier than a whole golden does, so short cases are the harder test. What a device emits freely is not
asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import islice
from typing import Any

from parity.compare import compare
from parity.compare.basis import Rerun
from parity.compare.report import FAIL, INCONCLUSIVE, WARN, Report, StageResult
from parity.drive import run_device
from parity.golden.fields import Mode
from parity.golden.store import Dump
from parity.golden.views import GoldenSlice, JoinedGoldens, TrustedGolden
from parity.partial import scratch
from parity.policy import Policy
from parity.run_request import RunRequest
from parity.seam import Device

MODES: tuple[Mode, ...] = ("local", "chained")
ALARM = (FAIL, INCONCLUSIVE)


@dataclass(frozen=True)
class CalibrationRequest:
    """What to calibrate: `device` builds a clean device by name, `runs` is the number of comparisons.

    `rerun` runs the reference again for a device that hides a part, by an option of its name or by what it declares.
    """

    golden: TrustedGolden
    device: Callable[[str], Device]
    names: Sequence[str]
    policy: Policy
    runs: int
    rounds: int
    progress: Callable[[int, int, str], None] = lambda done, total, name: None
    rerun: Rerun | None = None


@dataclass(frozen=True)
class Comparison:
    """One verdict over one case; `digest` is that of the run's tensors, `first` where it failed."""

    device: str
    mode: str
    prompt: str
    verdict: str
    digest: str
    first: str | None


@dataclass
class Margin:
    """The clean maximum of a statistic in the unit of its bounds `ok` and `warn`, and where it was met."""

    ok: float
    warn: float
    largest: float = 0.0
    device: str = ""
    prompt: str = ""
    stage: str = ""


@dataclass
class StageFamily:
    """A stage family in one mode: stage verdicts given, those that warned or failed, and the margins."""

    judged: int = 0
    warned: int = 0
    alarms: int = 0
    margins: dict[str, Margin] = field(default_factory=dict)

    def count(self, stage: StageResult, device: str, prompt: str) -> None:
        """Enter one stage's verdict."""
        self.judged += 1
        self.warned += stage.verdict == WARN
        self.alarms += stage.verdict in ALARM
        for name, (ok, warn) in stage.bounds.items():
            margin = self.margins.setdefault(name, Margin(ok, warn))
            if name in stage.x and stage.x[name] > margin.largest:
                margin.largest, margin.device, margin.prompt, margin.stage = stage.x[name], device, prompt, stage.stage


@dataclass
class Calibration:
    """What clean comparisons found; `families` by (family, mode) in dataflow order."""

    golden: str
    policy: str
    rounds: int
    comparisons: list[Comparison] = field(default_factory=list)
    families: dict[tuple[str, str], StageFamily] = field(default_factory=dict)

    @property
    def alarms(self) -> list[Comparison]:
        """Clean comparisons that did not pass."""
        return [one for one in self.comparisons if one.verdict in ALARM]

    @property
    def warned(self) -> list[Comparison]:
        """Clean comparisons that passed with a warning; alarms under --strict."""
        return [one for one in self.comparisons if one.verdict == WARN]

    @property
    def distinct(self) -> int:
        """Different runs among them: two devices that round alike, bit for bit, are one witness."""
        return len({(one.mode, one.prompt, one.digest) for one in self.comparisons})

    def exit_code(self, strict: bool = False) -> int:
        """1 with any false alarm, 3 where nothing was compared."""
        if not self.comparisons:
            return 3
        return int(bool(self.alarms or (strict and self.warned)))

    def enter(self, name: str, mode: str, prompt: str, digest: str, report: Report) -> None:
        """Enter one comparison."""
        first = None if report.first is None else str(report.first)
        self.comparisons.append(Comparison(name, mode, prompt, report.verdict, digest, first))
        for stage in report.stages:
            self.families.setdefault((stage.family, mode), StageFamily()).count(stage, name, prompt)

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        families = [{"family": name, "mode": mode, **asdict(found)} for (name, mode), found in self.families.items()]
        counts = {"alarms": len(self.alarms), "warned": len(self.warned), "distinct": self.distinct}
        return {**asdict(self), **counts, "families": families}


def calibrate(request: CalibrationRequest) -> Calibration:
    """Run and judge clean devices; all devices and modes on one prompt before the next."""
    golden = request.golden
    calibration = Calibration(str(golden.folder), request.policy.name, request.rounds)
    devices = {name: request.device(name) for name in request.names}
    total = min(request.runs, len(golden.manifest.case.prompts) * len(devices) * len(MODES))
    lanes = {name: device.describe().lanes for name, device in devices.items()}
    for number, (case, name, mode) in enumerate(islice(_cases(request, lanes), request.runs)):
        prompt = case.manifest.case.prompts[0].id
        request.progress(number, total, f"{prompt} {name} {mode}")
        calibration.enter(name, mode, prompt, *judge(case, devices[name], mode, request.policy, rerun=request.rerun))
    request.progress(total, total, "")
    return calibration


def judge(
    case: TrustedGolden,
    device: Device,
    mode: Mode,
    policy: Policy,
    stages: Sequence[str] = (),
    rerun: Rerun | None = None,
) -> tuple[str, Report]:
    """The digest of a device's tensors over one case, and the verdict on them."""
    with scratch("calibrate") as folder:
        run = Dump(run_device(RunRequest(device, case, mode, stages, folder / "run", free=False)))
        report = compare(case, run, policy, stages, rerun=rerun)
    tensors = sorted((row.key, row.sha256) for row in run.manifest.tensors)
    return sha256(repr(tensors).encode()).hexdigest(), report


def _cases(request: CalibrationRequest, lanes: Mapping[str, int]) -> Iterator[tuple[TrustedGolden, str, Mode]]:
    for number in range(len(request.golden.manifest.case.prompts)):
        for name in request.names:
            case = _seated(request, number, lanes[name])
            for mode in MODES:
                yield case, name, mode


def _seated(request: CalibrationRequest, number: int, lanes: int) -> TrustedGolden:
    """One prompt, and as many behind it as the device has further lanes."""
    golden = request.golden
    if lanes == 1:
        return GoldenSlice(golden, number, request.rounds)
    case = golden.manifest.case
    numbers = [(number + lane) % len(case.prompts) for lane in range(lanes)]
    return JoinedGoldens([GoldenSlice(golden, each, request.rounds, case.max_new_tokens) for each in numbers])
