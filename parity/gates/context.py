"""What gates judge: a golden, a device that can be built anew, the runs they share, and the golden's noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path

import numpy as np

from parity.compare import compare
from parity.compare.basis import Basis, Rerun, basis
from parity.compare.numbers import crest
from parity.compare.report import Report
from parity.compare.rows import HALF_ULP, NOISY, WIDEST, stage_rows
from parity.drive import run_device
from parity.errors import Inconclusive, NotOffered, UsageError
from parity.golden.fields import Mode
from parity.golden.sources import digests
from parity.golden.store import Dump
from parity.golden.trust import device_modules, enumerated, refuse_less
from parity.golden.views import DumpView, TrustedGolden
from parity.metrics import measure
from parity.policy import QUANTISED, read_policy
from parity.progress import Progress, quiet
from parity.raised import raised_text, refuses
from parity.reproducing import Argument, command_line
from parity.run_request import RunRequest
from parity.seam import Device, Rotary

EXACT = "float32"


@cache
def _worst_rows(stage: str) -> float:
    """The bfloat16 policy's bound on a row, in multiples of its noise."""
    return read_policy(None, "bfloat16").row(stage, QUANTISED).bounds["worst_row"].warn


class NoiseFloors:
    """Chained bfloat16 floors of a golden, measured once for each stage.

    A device's own rows have no floor of their own: all of them together are compared with the pooled floor
    of the golden's rows, a single one with the noisy tenth's (see `parity.compare.rows`).
    """

    def __init__(self, golden: TrustedGolden):
        self.golden = golden
        self._floors: dict[str, tuple[float, float, float]] = {}

    @property
    def flips(self) -> bool:
        """Whether float32 runs part by more than rounding: of two tied numbers a quantised cache may keep either."""
        return bool(self.golden.manifest.case.kv_cache)

    def flip_bound(self, stage: str) -> float:
        """How far, relative, such a tie may take a float32 row: as far as a row of a bfloat16 device may be from the
        golden, whose floors have such ties in them; 0 where none can."""
        bounds = _worst_rows(stage) if self.flips else 0.0
        return bounds * self.noisy(stage) if bounds else 0.0

    def pooled(self, stage: str) -> float:
        """Relative L2 of the floor over all rows."""
        return self._floor(stage)[0]

    def noisy(self, stage: str) -> float:
        """Relative L2 that one row in ten exceeds."""
        return self._floor(stage)[1]

    def crest(self, stage: str) -> float:
        """The typical row's largest error over its RMS error."""
        return self._floor(stage)[2]

    def rms(self, stage: str, scores: np.ndarray) -> np.ndarray:
        """RMS noise [R] to expect in rows of scores [R, X]."""
        noise: np.ndarray = self.noisy(stage) * np.sqrt((scores.astype(np.float64) ** 2).mean(axis=1))
        return noise

    def _floor(self, stage: str) -> tuple[float, float, float]:
        if stage not in self._floors:
            self._floors[stage] = _measured(self.golden, stage)
        return self._floors[stage]


def _measured(golden: TrustedGolden, stage: str) -> tuple[float, float, float]:
    rows = stage_rows(golden, golden, golden.declared[stage], device="float32", mode="chained")
    if rows is None or rows.floor is None:
        raise Inconclusive(f"{golden.folder} holds no float32 and bfloat16 {stage}: its noise is unknown")
    measured = measure(rows.golden, rows.floor)
    relative = measured.rows.rel_l2
    if measured.count < measured.size:
        raise Inconclusive(f"{golden.folder} has NaN or Inf in {stage} or its noise floor: its noise is unknown")
    if measured.rel_l2 > WIDEST:
        raise Inconclusive(f"the noise floor of {stage} is {measured.rel_l2:.0%} of the golden: it bounds nothing")
    rms = relative * np.sqrt(measured.rows.golden_sq / rows.golden.shape[1])
    pooled = float(np.sqrt((relative**2).mean()))
    return max(pooled, HALF_ULP), max(float(np.quantile(relative, NOISY)), HALF_ULP), crest(measured, rms)


@dataclass
class GateContext:
    """A golden and the device under test.

    Args:
        golden: the truth.
        device_name: as given to `--device`.
        build: makes a fresh device: `build(precision=..., **options)`; options are `k`, `max_positions` and
            `batch`. Raises `NotOffered` for one that the factory does not take.
        precision: what the runs are made in.
        folder: where run folders go.
        histories: accept / reject histories the rollback gate explores.
        seed: of everything random.
        bound: relative loss of acceptance length that still passes.
        progress: told (done, total, what) while a run is made.
        rotate: the device's rotary embedding alone, where its module offers one.
        configs: folder of the published configs, where it is installed.
        bounds: policy file or name of the stage comparisons; the default policy of the precision where None.
        rerun: runs the reference again with the experts of a given run that continued with its own.
    """

    golden: TrustedGolden
    device_name: str
    build: Callable[..., Device]
    precision: str
    folder: Path
    histories: int = 500
    seed: int = 0
    bound: float = 0.05
    progress: Progress = quiet
    rotate: Rotary | None = None
    configs: Path | None = None
    bounds: str | None = None
    rerun: Rerun | None = None
    _devices: dict[tuple[str, frozenset[tuple[str, int]]], Device] = field(default_factory=dict)
    _runs: dict[str, DumpView] = field(default_factory=dict)
    _reports: dict[str, Report] = field(default_factory=dict)
    _given: list[DumpView] = field(default_factory=list)

    def device(self, precision: str | None = None, **options: int) -> Device:
        """The device in this precision (the context's by default), built once for each set of options.

        Raises:
            NotOffered: the factory does not take an option, or does not offer a precision that only a check asks for.
            UsageError: the device cannot be built, or is not the one that made a given run.
        """
        options = {"k": self.golden.manifest.case.k, **options}
        chosen = precision or self.precision
        wanted = (chosen, frozenset(options.items()))
        if wanted not in self._devices or getattr(self._devices[wanted], "process_ended", False):
            self._devices[wanted] = self._built(chosen, **options)
        return self._devices[wanted]

    def command(self, gate: str) -> str:
        """The command that asks this gate once more, with every option that its verdict depends on."""
        plain = {one.name: one.default for one in fields(self)}
        asked: dict[str, Argument] = {
            name: str(getattr(self, name))
            for name in ("histories", "seed", "bound")
            if getattr(self, name) != plain[name]
        }
        case: dict[str, Argument] = {"golden": self.golden.folder, "device": self.device_name}
        again = command_line("gate", only=gate, **case, precision=self.precision, **asked)
        return again + "".join(f" --run {run.command}" for run in self._given)

    def renew(self) -> None:
        """Build the devices anew for whoever asks next, and make no use of what those before them did."""
        self._devices.clear()

    def fresh(self, precision: str, **options: int) -> Device:
        """The same, built for whoever asks: nothing has run on it yet."""
        return self._built(precision, **{"k": self.golden.manifest.case.k, **options})

    def offers(self, precision: str) -> str:
        """Why the device has not this precision; empty where it has.

        Raises:
            UsageError: the device cannot be built, or is not the one that made a given run.
        """
        try:
            says = self.device(precision).describe().precision
        except UsageError:
            raise
        except Exception as error:
            if not _not_offered(error, precision):
                raise
            return f"the device does not offer it ({raised_text(error)})"
        return "" if says == precision else f"asked for it, the device says that it computes in {says}"

    @property
    def sharpest(self) -> str:
        """Float32 where the device offers it, which leaves a defect no rounding to hide in; the context's elsewhere."""
        return self.precision if self.offers(EXACT) else EXACT

    def _built(self, precision: str, **options: int) -> Device:
        try:
            device = self.build(precision=precision, **options)
        except UsageError as error:
            if precision == self.precision or options != {"k": self.golden.manifest.case.k}:
                raise
            raise NotOffered(f"{self.device_name} does not offer {precision}: {error}") from error
        for run in self._given:
            self._made(device, run)
        return device

    def _made(self, device: Device, run: DumpView) -> None:
        """Raise UsageError unless this device, from the source as it is now, made a given run."""
        maker, says = run.manifest.producer, device.describe()
        if maker.name != says.name:
            raise UsageError(
                f"{run.folder} was made by {maker.name}, --device {self.device_name} is {says.name}: "
                f"name the device that made the run; `parity diff {run.command}` judges it without one"
            )
        now = digests(device_modules(device, says.modules, self.device_name, self.golden.manifest.producer))
        if changed := sorted(name for name in now.keys() & maker.sources.keys() if now[name] != maker.sources[name]):
            raise UsageError(
                f"{run.folder} was made before {enumerated(changed)} changed: run --device {self.device_name} again; "
                f"`parity diff {run.command}` judges the run as it is"
            )

    def run(self, mode: Mode) -> DumpView:
        """The device's run over the whole golden, made once for each mode; chained ones generate freely as well."""
        if mode not in self._runs:
            request = RunRequest(
                device=self.device(),
                golden=self.golden,
                mode=mode,
                stages=(),
                out=self.folder / mode,
                progress=self.progress,
                device_name=self.device_name,
            )
            self._runs[mode] = Dump(run_device(request))
        return self._runs[mode]

    def compared(self, mode: Mode) -> Report:
        """Every stage of the run of this mode, judged once."""
        if mode not in self._reports:
            run = self.run(mode)
            policy = read_policy(self.bounds, run.manifest.case.precision)
            self._reports[mode] = compare(self.golden, run, policy, rerun=self.rerun)
        return self._reports[mode]

    def basis(self, mode: Mode) -> Basis:
        """What the run of this mode is judged against."""
        return basis(self.golden, self.run(mode), self.golden.manifest.stages, self.rerun)

    def compared_exactly(self, golden: TrustedGolden, mode: Mode) -> Report:
        """Every stage of a float32 run over this golden, a part of the context's, by float32's own policy."""
        out = self.folder / f"float32-{mode}"
        request = RunRequest(
            self.device("float32"), golden, mode, (), out, progress=self.progress, device_name=self.device_name
        )
        return compare(golden, Dump(run_device(request)), read_policy(None, "float32"), rerun=self.rerun)

    def give(self, run: DumpView) -> None:
        """Judge this run instead of making one of its mode.

        Raises:
            UsageError: it is in another precision than the context, or keeps less than whole tensors.
        """
        refuse_less(run)
        if run.manifest.case.precision != self.precision:
            raise UsageError(f"{run.folder} is a run in {run.manifest.case.precision}, not in {self.precision}")
        self._given.append(run)
        self._runs[run.manifest.case.mode] = run


def _not_offered(error: Exception, precision: str) -> bool:
    """Whether a device says that it lacks a precision: in so many words, or by a refusal that names a precision."""
    if isinstance(error, NotOffered | NotImplementedError):
        return True
    return refuses(error) and any(word in raised_text(error).lower() for word in (precision, "precision", "dtype"))
