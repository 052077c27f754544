"""A device: run over a golden, walked through the contract, compared, diagnosed, its failure reduced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from parity.api.arguments import File, path_or_none, refuse_unopened, text_or_none
from parity.api.dumps import read_dump
from parity.errors import UsageError
from parity.progress import Progress, quiet

if TYPE_CHECKING:
    from parity.compare.basis import Rerun
    from parity.compare.between import DeviceDifference
    from parity.compare.breakdown import Slice
    from parity.compare.report import Report
    from parity.contract.lines import Checked
    from parity.diagnose import Diagnosis
    from parity.diagnose.gates import GateCause
    from parity.golden.fields import Mode
    from parity.golden.store import Dump
    from parity.golden.views import DumpView, TrustedGolden
    from parity.isolation import ProcessLimits
    from parity.reduce import Reduced


def run_device(
    golden: TrustedGolden,
    device: str = "numpy",
    mode: Mode = "chained",
    precision: str = "bfloat16",
    stages: Sequence[str] = (),
    out: File | None = None,
    *,
    free: bool = True,
    layers: str = "",
    limits: ProcessLimits | None = None,
    progress: Progress = quiet,
    sketch: int | None = None,
    sketch_seed: int | None = None,
    logits: str = "",
    positions: str = "",
) -> Dump:
    """Run a device over a golden's prompts and write down every stage; the run, opened.

    Args:
        device: an engine (`numpy`, `xla`, `nkipy`, `neuron`), or `package.module:factory`, with its options.
        mode: `chained`: errors travel downstream; `local`: every stage starts from the golden's input.
        precision: the device computes in, `bfloat16` or `float32`.
        stages: globs over stage names; all where empty.
        out: a new folder; one below `parity.home.home()` by default.
        free: a chained run generates freely as well.
        layers: `A:B`, target layers A to B - 1 alone, one in memory at a time, on the golden's inputs: a local run.
        limits: of a process of its own that the device then lives in; None has it live in this one.
        sketch, sketch_seed, logits, positions: what is kept of its tensors: see `parity.golden.smaller.Smaller`.

    Raises:
        UsageError: no such device, its shapes are not the golden's, or a glob matches nothing.
        NotOffered: it does not run layers alone.
        DeviceFailed: it raised.
    """
    from parity.builders import device as build
    from parity.builders import layered
    from parity.drive import run_device as drive
    from parity.golden.smaller import Smaller
    from parity.golden.store import Dump
    from parity.home import fresh
    from parity.layers import Layers
    from parity.run_request import RunRequest

    refuse_unopened(golden=golden)
    if mode not in ("chained", "local"):
        raise UsageError(f"mode {mode!r}: a run is chained or local")
    some = Layers.parse(layers, golden.manifest.model.num_layers) if layers else None
    if some and (mode != "local" or limits):
        raise UsageError("--layers: layers are run alone in mode local, and in this process (without --isolate)")
    request = RunRequest(
        device=layered(device, golden, precision) if some else build(device, golden, precision, limits),
        layers=some,
        golden=golden,
        mode=mode,
        stages=stages,
        out=Path(out) if out else fresh("runs", f"{device}-{mode}"),
        progress=progress,
        device_name=device,
        free=free,
        smaller=Smaller(sketch, sketch_seed, logits, positions),
    )
    return Dump(drive(request))


def check_device(
    device: str = "numpy",
    precision: str = "bfloat16",
    k: int = 4,
    *,
    target: File | None = None,
    drafter: File | None = None,
) -> Checked:
    """Walk a device through the contract on a prompt of two tokens (docs/adding-a-device.md): no golden, no torch.

    Args:
        device: an engine (`numpy`, `xla`, `nkipy`, `neuron`), or `package.module:factory`, with its options.
        target, drafter: checkpoints; the tiny pair by default.

    Raises:
        UsageError: no such device or checkpoint.
        DeviceFailed: its module or factory raises.
    """
    from parity.bundled import tiny
    from parity.contract import check_device as check

    pair = path_or_none(target) or tiny("target"), path_or_none(drafter) or tiny("drafter")
    return check(device, *pair, k, precision)


def device_difference(
    golden: TrustedGolden,
    run: DumpView,
    other: str,
    stages: Sequence[str] = (),
    limits: ProcessLimits | None = None,
    progress: Progress = quiet,
) -> DeviceDifference:
    """A run as it differs from another one over the same golden; `compare_dumps` judges it.

    Args:
        other: a run's folder, or a device, which is then run.

    Raises:
        UsageError: `other` is the run itself, or empty.
    """
    from parity.compare.between import DeviceDifference
    from parity.layers import refuse_layers

    refuse_unopened(golden=golden, run=run)
    refuse_layers(run, "--against")
    if not other.strip():  # as a path it is the working directory
        raise UsageError("--against is empty: name a run's folder, or a device")
    if (Path(other) / "manifest.json").is_file():
        if Path(other).resolve() == run.folder.resolve():
            raise UsageError(f"--against {other}: that is the run itself, nothing would be compared")
        theirs = read_dump(other)
        refuse_layers(theirs, "--against")
        return DeviceDifference(golden, run, theirs)
    case = run.manifest.case
    theirs = run_device(golden, other, case.mode, case.precision, stages, limits=limits, progress=progress)
    return DeviceDifference(golden, run, theirs)


def compare_dumps(
    golden: TrustedGolden,
    run: DumpView,
    stages: Sequence[str] = (),
    policy: File | None = None,
    strict: bool = False,
    rerun: Rerun | None = None,
    without: Sequence[str] = (),
) -> Report:
    """Judge every selected stage of a run, or of a `device_difference`, against a golden.

    Args:
        stages: globs over stage names; all where empty.
        policy: a file or the name of a shipped policy; the one of the run's precision by default.
        strict: a warning is a failure.
        rerun: runs the reference again for a run that went on with experts of its own or hides a part; a
            `ReferenceRerun` of its own where None. Without torch such a run is inconclusive at best.
        without: bounds that are left out where sketches or best logits, in place of whole tensors, say nothing of them
            (docs/smaller-goldens.md); without that such a stage is inconclusive.

    Raises:
        UsageError: the run is none over this golden, or the policy cannot be read.
    """
    from parity.compare import compare
    from parity.compare.between import DeviceDifference, compare_devices
    from parity.oracles import ReferenceRerun
    from parity.policy import read_policy

    refuse_unopened(golden=golden, run=run)
    bounds = read_policy(policy, run.manifest.case.precision)
    if isinstance(run, DeviceDifference):
        return compare_devices(golden, run, bounds, stages, strict)
    return compare(golden, run, bounds, stages, strict, rerun or ReferenceRerun(), without)


def worst_slices(
    golden: TrustedGolden, run: DumpView, report: Report, per: str, worst: int = 5, rerun: Rerun | None = None
) -> dict[str, list[Slice]]:
    """The worst positions, heads or experts of the stages that do not pass, or of all selected ones where all pass.

    Args:
        per: `position`, `head` or `expert`.
        worst: how many of each stage.
        rerun: as for `compare_dumps`; the same one runs the reference once for both.
    """
    from parity.compare.basis import basis
    from parity.compare.breakdown import breakdown
    from parity.oracles import ReferenceRerun

    refuse_unopened(golden=golden, run=run)
    golden = basis(golden, run, golden.manifest.stages, rerun or ReferenceRerun()).golden
    numbers = [stage for stage in report.stages if stage.x]
    wrong = [stage for stage in numbers if stage.verdict != "pass" and "inherited" not in stage.marks]
    return breakdown(golden, run, [stage.stage for stage in wrong or numbers], per, worst)


def diagnose_device(
    golden: TrustedGolden,
    device: str = "numpy",
    precision: str = "bfloat16",
    *,
    run: DumpView | None = None,
    policy: File | None = None,
    threads: int = 1,
    limits: ProcessLimits | None = None,
    limit: float | None = None,
    progress: Progress = quiet,
) -> Diagnosis | list[GateCause] | None:
    """Name the defect behind a red run, or behind a device that is run now; needs torch.

    Args:
        run: what a device did, instead of running it.
        threads: of the references.
        limit: seconds for the search of causes, beside the device's own runs; None for no limit. What it left out
            stands in `Diagnosis.untried`.

    Returns:
        A `Diagnosis`; what ranks or gates say (`GateCause`) where no stage is red; None where nothing is wrong.
    """
    from parity.diagnose.whole import DiagnosisRequest, diagnosed
    from parity.layers import refuse_layers
    from parity.partial import scratch

    refuse_unopened(golden=golden, run=run)
    if run:
        refuse_layers(run, "a diagnosis")

    with scratch("diagnose") as folder:
        return diagnosed(
            DiagnosisRequest(
                golden, run, device, precision, text_or_none(policy), threads, folder, limits, progress, limit
            )
        )


def reduce_failure(
    golden: TrustedGolden,
    device: str = "numpy",
    precision: str = "bfloat16",
    *,
    policy: File | None = None,
    threads: int = 1,
    out: File | None = None,
    told: Callable[[str], None] = lambda line: None,
    limits: ProcessLimits | None = None,
) -> Reduced | None:
    """Cut a device's failure to the shortest prompt, fewest rounds and smallest K that fail at the same stage.

    Args:
        out: the reduced golden; a new folder below `parity.home.home()` by default.
        told: one line about every case tried.
        limits: of a process of its own that each device then lives in; None has them live in this one.

    Returns:
        The case, its golden and the mode that shows it; None where the device passes every stage.

    Raises:
        UsageError: `out` exists already.
        Inconclusive: it does not pass either, and no row of it fails.
    """
    from parity.home import fresh
    from parity.partial import scratch, taken
    from parity.reduce import reduced

    refuse_unopened(golden=golden)
    place = Path(out) if out else fresh("goldens", "reduced")
    if taken(place):
        raise UsageError(f"{place} exists already; choose another --out or remove it")
    with scratch("reduce") as folder:
        return reduced(golden, device, precision, text_or_none(policy), threads, place, folder, told, limits)
