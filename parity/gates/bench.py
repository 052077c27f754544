"""What gates judge: a golden, a device that can be built anew, and the runs they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from parity.compare import compare
from parity.compare.basis import Basis, Rerun, basis
from parity.compare.report import Report
from parity.drive import RunRequest, run_device
from parity.errors import NotOffered, UsageError
from parity.golden.manifest import Mode
from parity.golden.store import Dump
from parity.policy import read_policy
from parity.progress import Progress, quiet
from parity.seam import Device, Rotary


@dataclass
class Bench:
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
        rotate: the device's rotary embedding by itself, where its module offers one.
        configs: folder of the published configs, where it is installed.
        bounds: policy file or name of the stage comparisons; the default policy of the precision where None.
        rerun: runs the reference again with the experts of a given run that went on with its own.
    """

    golden: Dump
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
    _devices: dict[tuple, Device] = field(default_factory=dict)
    _runs: dict[str, Dump] = field(default_factory=dict)
    _reports: dict[str, Report] = field(default_factory=dict)
    _given: list[Dump] = field(default_factory=list)

    def device(self, precision: str | None = None, **options: int) -> Device:
        """The device in this precision (the bench's own by default), built once for each set of options.

        Raises:
            NotOffered: the factory does not take an option, or does not offer a precision that only a check asks for.
            UsageError: the device cannot be built, or is not the one that made a given run.
        """
        options = {"k": self.golden.manifest.case.k, **options}
        wanted = (precision or self.precision, *sorted(options.items()))
        if wanted not in self._devices or getattr(self._devices[wanted], "process_ended", False):
            self._devices[wanted] = self._built(*wanted[:1], **options)
        return self._devices[wanted]

    def _built(self, precision: str, **options: int) -> Device:
        try:
            device = self.build(precision=precision, **options)
        except UsageError as error:
            if precision == self.precision or options != {"k": self.golden.manifest.case.k}:
                raise
            raise NotOffered(f"{self.device_name} does not offer {precision}: {error}") from error
        name = device.describe().name
        for run in self._given:
            if run.manifest.producer.name != name:
                raise UsageError(
                    f"{run.folder} was made by {run.manifest.producer.name}, --device {self.device_name} is {name}: name "
                    "the device that made the run, or judge the run alone with --only stages"
                )
        return device

    def run(self, mode: Mode) -> Dump:
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

    def compared_exactly(self, golden: Dump, mode: Mode) -> Report:
        """Every stage of a float32 run over this golden, a part of the bench's, by float32's own policy."""
        out = self.folder / f"float32-{mode}"
        request = RunRequest(
            self.device("float32"), golden, mode, (), out, progress=self.progress, device_name=self.device_name
        )
        return compare(golden, Dump(run_device(request)), read_policy(None, "float32"), rerun=self.rerun)

    def give(self, run: Dump) -> None:
        """Judge this run instead of making one of its mode.

        Raises:
            UsageError: it is in another precision than the bench.
        """
        if run.manifest.case.precision != self.precision:
            raise UsageError(f"{run.folder} is a run in {run.manifest.case.precision}, not in {self.precision}")
        self._given.append(run)
        self._runs[run.manifest.case.mode] = run
