"""The front of the library: goldens, runs and verdicts as the command line has them, without printing anything.

Every function takes paths as `str` or `Path`; whatever the reader did wrong raises `parity.errors.ParityError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.errors import UsageError
from parity.progress import Progress, quiet

if TYPE_CHECKING:
    from parity.bench.compare import BenchComparison
    from parity.bench.records import BenchReport
    from parity.compare.basis import Rerun
    from parity.compare.between import DeviceDifference
    from parity.compare.breakdown import Slice
    from parity.compare.report import Report
    from parity.contract.lines import Checked
    from parity.diagnose import Diagnosis
    from parity.diagnose.gates import GateCause
    from parity.endpoint import EndpointReport
    from parity.gates.gate import GateReport, GateResult
    from parity.golden.manifest import Mode
    from parity.golden.store import Dump
    from parity.golden.verify import Verified
    from parity.golden.views import DumpView, TrustedGolden
    from parity.imports.placing import Placing
    from parity.isolation import ProcessLimits
    from parity.reduce import Reduced
    from parity.reports.page.night import NightView

File = str | Path


def open_golden(
    folder: File | None = None,
    *,
    target: File | None = None,
    drafter: File | None = None,
    sampled: bool = False,
    smaller: bool = False,
) -> TrustedGolden:
    """Open a golden to judge by: nothing behind it changed since it was dumped, and it names its source.

    What judges takes what this returns; `read_dump` only looks.

    Args:
        folder: the newest golden of a whole case below `parity.home.home()` by default.
        target, drafter: where its checkpoints are now, if they moved.
        sampled: it may sample: for `run_device` and `compare_dumps`; what else judges compares greedy decoding.
        smaller: it may keep sketches, best logits or some positions: for the same two.

    Raises:
        UsageError: there is none, it is a device's run, stale, names no source, or a checkpoint is not the golden's.
    """
    from parity.golden.choice import Wanted, open_for_judging
    from parity.home import home

    return open_for_judging(Wanted(_path(folder), _path(target), _path(drafter)), home() / "goldens", sampled, smaller)


def read_dump(folder: File) -> Dump:
    """Open a golden or a run only to look at it.

    Raises:
        UsageError: it is neither, or damaged.
    """
    from parity.golden.store import Dump

    return Dump(Path(folder))


def verify_golden(golden: DumpView, progress: Progress = quiet) -> Verified:
    """Dump a golden's case once more and compare every tensor's bytes.

    Raises:
        UsageError: a checkpoint changed, the golden's files are damaged, or nothing here can dump it once more.
    """
    from parity.golden.verify import check_bytes, verified, write_prompts
    from parity.partial import scratch
    from parity.producers import dump_again, how_made

    _refuse_unopened(golden=golden)
    how_made(golden)
    check_bytes(golden)
    with scratch("verify") as folder:
        prompts = write_prompts(golden, folder / "prompts.jsonl")
        return verified(golden, dump_again(golden, folder / "again", prompts, progress))


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
    from parity.drive import RunRequest
    from parity.drive import run_device as drive
    from parity.golden.smaller import Smaller
    from parity.golden.store import Dump
    from parity.home import fresh
    from parity.layers import Layers
    from parity.producers import device as build
    from parity.producers import layered

    _refuse_unopened(golden=golden)
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

    pair = _path(target) or tiny("target"), _path(drafter) or tiny("drafter")
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
        UsageError: `other` is the run itself.
    """
    from parity.compare.between import DeviceDifference
    from parity.layers import refuse_layers

    _refuse_unopened(golden=golden, run=run)
    refuse_layers(run, "--against")
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
    from parity.policy import read_policy
    from parity.producers import ReferenceRerun

    _refuse_unopened(golden=golden, run=run)
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
    from parity.producers import ReferenceRerun

    _refuse_unopened(golden=golden, run=run)
    golden = basis(golden, run, golden.manifest.stages, rerun or ReferenceRerun()).golden
    numbers = [stage for stage in report.stages if stage.x]
    wrong = [stage for stage in numbers if stage.verdict != "pass" and "inherited" not in stage.marks]
    return breakdown(golden, run, [stage.stage for stage in wrong or numbers], per, worst)


def gate_device(
    golden: TrustedGolden,
    device: str = "numpy",
    precision: str = "bfloat16",
    only: Sequence[str] | None = None,
    *,
    quick: bool = False,
    run: DumpView | None = None,
    histories: int = 500,
    seed: int = 0,
    bound: float = 0.05,
    keep: File | None = None,
    limits: ProcessLimits | None = None,
    done: Callable[[GateResult], None] = lambda result: None,
    progress: Progress = quiet,
) -> GateReport:
    """Run every gate over a device, joined by AND: stages, decisions, losslessness, acceptance, caches.

    Args:
        only: names of `parity.gates.GATES`; all where None.
        quick: the most telling gates over one prompt's first rounds, see `parity.gates.quick`: the report fails, or is
            inconclusive; with neither `only` nor `run`.
        run: judged instead of one that is made in its mode.
        histories: accept/reject histories of the rollback gate.
        seed: of everything random.
        bound: relative loss of acceptance length that still passes.
        keep: a new folder for the runs that the gates make; else they are removed.
        limits: of a process of its own that the device then lives in; None has it live in this one.
        done: told each gate's result as it comes.

    Raises:
        UsageError: no such gate or device, or it is not the one that made the run.
    """
    from parity.errors import UsageError
    from parity.gates import GATES, run_gates
    from parity.gates.quick import HISTORIES, QUICK_GATES, quick_look
    from parity.layers import refuse_layers
    from parity.partial import scratch
    from parity.producers import gate_context

    _refuse_unopened(golden=golden, run=run)
    if only is not None and not only:
        raise UsageError("only names no gate: leave it out for all of them")
    only = only or ()
    if unknown := [name for name in only if name not in GATES]:
        raise UsageError(f"--only {unknown[0]}: no such gate; there is {', '.join(GATES)}")
    if quick and (only or run):
        raise UsageError(
            "a quick look chooses its gates and makes its own short runs: it goes with neither --only nor --run"
        )
    look = quick_look(golden, histories) if quick else None
    if look:
        golden, only, histories = look.golden, QUICK_GATES, HISTORIES
    with ExitStack() as stack:
        if keep and Path(keep).exists():
            raise UsageError(f"{keep} exists already; choose another --keep or remove it")
        folder = Path(keep) if keep else stack.enter_context(scratch("gate"))
        asked: dict[str, Any] = dict(histories=histories, seed=seed, bound=bound, progress=progress)
        context = gate_context(golden, device, precision, folder, limits, **asked)
        if run:
            refuse_layers(run, "a gate")
            context.give(run)
        return replace(run_gates(context, only, done), left_out=tuple(look.left_out) if look else ())


def judge_endpoint(
    golden: TrustedGolden,
    url: str,
    plain: str | None = None,
    precision: str = "bfloat16",
    *,
    speculates: bool = True,
    kind: str = "",
    model: str = "",
    timeout: float = 120.0,
    key: str = "",
    bound: float = 0.05,
    seed: int = 0,
    progress: Progress = quiet,
) -> EndpointReport:
    """Compare a serving endpoint with a golden of its pair: log-probabilities, greedy text, acceptance, experts.

    Args:
        url: of an OpenAI-compatible server, `http://host:port`.
        plain: another one that serves the same model without speculation.
        precision: the servers compute in, `bfloat16` or `float32`.
        speculates: False where the server decodes plainly: its acceptance is not asked for.
        kind: `vllm`, `sglang`, `llamacpp` or `trtllm`; what the server says where empty.
        model: its name there; the only one where empty.
        timeout: seconds in which one answer is there, whole.
        key: sent as a bearer token where there is one.
        bound: relative loss of acceptance length that still passes.
        seed: of the interval.

    Raises:
        UsageError: that is no URL, nobody listens there, or there is no such kind or model.
        Inconclusive: the server does not answer as such a server does, or the golden lacks logits.
    """
    from parity.endpoint import Examination, examine
    from parity.endpoint.connection import Connection
    from parity.endpoint.server import Server

    server = Server(Connection(url, timeout, key), kind, model)
    other = Server(Connection(plain, timeout, key), kind, model) if plain else None
    return examine(Examination(golden, server, other, precision, speculates, bound, seed, progress))


def bench_device(
    device: str | Sequence[str] = "numpy",
    prompts: File | None = None,
    ks: Sequence[int] = (4,),
    *,
    target: File | None = None,
    drafter: File | None = None,
    field: str = "",
    first: int | None = 5,
    precision: str = "bfloat16",
    **asked: Any,
) -> BenchReport:
    """Time devices with and without drafts, in turn, and say whether speculation pays.

    Args:
        device: one or several, as `run_device` takes them.
        prompts: JSON lines; the tiny pair's chat prompts by default.
        ks: every number of drafts that is tried.
        target, drafter: checkpoints; the tiny pair by default.
        field: of the prompts, where they have another layout.
        first: so many prompts; all where None.
        asked: what else `parity.bench.BenchRequest` takes: `scenarios`, `repeats`, `max_new_tokens`, `reference`, ...

    Raises:
        UsageError: no such device, checkpoint, prompt or scenario.
    """
    from parity.bench.measure import run_bench
    from parity.bench.request import BenchRequest
    from parity.bench.workload import read_workload
    from parity.bundled import tiny

    pair = _path(target) or tiny("target"), _path(drafter) or tiny("drafter")
    workload = read_workload(_path(prompts) or tiny("prompts/chat.jsonl"), pair, field, first=first)
    devices = (device,) if isinstance(device, str) else tuple(device)
    return run_bench(BenchRequest((workload,), *pair, devices=devices, ks=tuple(ks), precision=precision, **asked))


def compare_benches(first: File, second: File, anyway: bool = False) -> BenchComparison:
    """Compare two files of `parity bench --json`: the second over the first, cell by cell, with limits.

    Args:
        anyway: they may be of other machines or cases.

    Raises:
        UsageError: a file is no bench, or they are not of one machine and case.
    """
    from parity.bench.compare import compare_reports
    from parity.bench.records import read_bench

    return compare_reports(read_bench(Path(first)), read_bench(Path(second)), anyway)


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

    _refuse_unopened(golden=golden, run=run)
    if run:
        refuse_layers(run, "a diagnosis")

    with scratch("diagnose") as folder:
        return diagnosed(
            DiagnosisRequest(golden, run, device, precision, _text(policy), threads, folder, limits, progress, limit)
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
) -> Reduced | None:
    """Cut a device's failure to the shortest prompt, fewest rounds and smallest K that fail at the same stage.

    Args:
        out: the reduced golden; a new folder below `parity.home.home()` by default.
        told: one line about every case tried.

    Returns:
        The case, its golden and the mode that shows it; None where the device passes every stage.

    Raises:
        Inconclusive: it does not pass either, and no row of it fails.
    """
    from parity.home import fresh
    from parity.partial import scratch
    from parity.reduce import reduced

    _refuse_unopened(golden=golden)
    with scratch("reduce") as folder:
        place = Path(out) if out else fresh("goldens", "reduced")
        return reduced(golden, device, precision, _text(policy), threads, place, folder, told)


def import_dump(
    paths: Sequence[File],
    source: str,
    golden: DumpView,
    out: File,
    names: str | None = None,
    reference: str = "",
    partial: bool = False,
) -> Placing:
    """Write another tool's dump as a run folder, to be compared with a golden; what of it was mapped, and what was not.

    Args:
        paths: files or folders.
        source: whose tool wrote them, one of `parity.imports.READERS`.
        out: a new folder.
        names: a file, or the name of a shipped map, from the tool's names to stages; without one they must be stages.
        reference: `NAME==VERSION` of an independent implementation that the dump comes from: a golden is written, to be
            compared with another one; it judges no device.
        partial: the run shows what the dump holds, and no more.

    Raises:
        UsageError: the dump cannot be read, does not fit the map or the golden's pair, or is of other tokens.
    """
    from parity.imports.names import read_map
    from parity.imports.run import ImportRequest, import_run
    from parity.imports.torch_file import torch_load

    _refuse_unopened(golden=golden)
    files = tuple(map(Path, paths))
    return import_run(ImportRequest(source, files, read_map(names), golden, Path(out), torch_load, reference, partial))


def export_dump(dump: DumpView, out: File) -> int:
    """Write a golden or a run as one .npz of plain arrays; how many.

    Raises:
        UsageError: the file exists already.
    """
    from parity.imports.files import export_npz

    _refuse_unopened(dump=dump)
    return export_npz(dump, Path(out))


def write_report(
    folder: File,
    out: File | None = None,
    *,
    golden: TrustedGolden | None = None,
    policy: str | None = None,
    history: str = "",
) -> NightView:
    """Write one HTML page that tells a night or a run; what it shows. Needs the extra `nightly`.

    Args:
        folder: of a night, or of a run.
        out: the file; report.html in the folder by default.
        golden: that a run is judged by.
        policy: bounds of a run; those of its precision by default.
        history: URL of the history to read changes and trends from.

    Raises:
        UsageError: the folder is neither, or a run comes without a golden.
    """
    from parity.reports.page.night import view_of
    from parity.reports.page.render import write

    _refuse_unopened(golden=golden)
    view = view_of(Path(folder), golden, policy, history or None)
    write(view, Path(out) if out else Path(folder) / "report.html")
    return view


def _refuse_unopened(**dumps: object) -> None:
    """Raises:
    UsageError: a path or something else stands where an opened dump is due; None stands for none.
    """
    for name, dump in dumps.items():
        if dump is not None and not hasattr(dump, "manifest"):
            opens = "open_golden" if name == "golden" else "read_dump"
            raise UsageError(f"{name} is a {type(dump).__name__}: parity.{opens}(FOLDER) opens what is due there")


def _path(file: File | None) -> Path | None:
    return None if file is None else Path(file)


def _text(file: Any) -> str | None:
    return None if file is None else str(file)
