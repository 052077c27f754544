"""Where the instrument meets references and devices: by name, when something needs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from parity.bundled import published_configs, tiny
from parity.errors import NotOffered, UsageError
from parity.factories import ENGINES, Factory
from parity.golden.asked import asked_smaller, refuse_options, refuse_unknown
from parity.golden.checkpoints import Model
from parity.golden.producer import Producer
from parity.golden.smaller import Smaller
from parity.golden.store import Dump
from parity.golden.views import DumpView, TrustedGolden
from parity.home import fresh
from parity.oracles import REFERENCES, ReferenceRerun, load_reference, missing
from parity.pair_sizes import read_pair
from parity.plan import GoldenPlan, golden_plan
from parity.progress import Progress, quiet
from parity.schedule import scheduled
from parity.seam import Device, Layered

if TYPE_CHECKING:
    from parity.compare.basis import Rerun
    from parity.gates.context import GateContext
    from parity.isolation import IsolatedFactory, ProcessLimits

DRAFTERS = {"eagle": "eagle3"}
"""The tiny drafter of a reference that is not for P-EAGLE."""


def dump_golden(
    target: Path | None = None,
    drafter: Path | None = None,
    prompts: Path | None = None,
    k: int | Sequence[int] = 4,
    max_new_tokens: int = 48,
    stages: Sequence[str] = (),
    threads: int = 1,
    out: Path | None = None,
    reference: str = "own",
    *,
    progress: Progress = quiet,
    **options: Any,
) -> Dump:
    """Run a reference over prompts and write every stage: a golden, opened.

    Args:
        target, drafter: checkpoint folders; the tiny pair's that ships with the project by default.
        prompts: JSON lines with messages, text or ids; the tiny pair's chat prompts by default.
        k: draft tokens a round; or those of each round in turn, from the first one again behind the last.
        max_new_tokens: token budget of each prompt.
        stages: globs over stage names; all where empty.
        threads: of the references; the same number gives the same bits.
        out: a new folder; one below `parity.home.home()` by default.
        reference: one of `REFERENCES`.
        options: what only some references take: `roundings`, `partial_kv`, `kv_cache`, `sample`, `seed`, `batch`,
            `memory`, `resume`, `max_bytes`, `python`, `floor`, `checkout`, `derived`; of what is kept `sketch`,
            `sketch_seed`, `logits`, `positions`.

    Raises:
        UsageError: this reference does not take one of the options, is not installed, or anything else does not fit.
    """
    options |= {"progress": progress}
    producer, request = _asked(reference, target, drafter, prompts, k, max_new_tokens, stages, threads, out, options)
    return Dump(producer.dump_golden(request))


def _asked(
    reference: str,
    target: Path | None,
    drafter: Path | None,
    prompts: Path | None,
    k: int | Sequence[int],
    max_new_tokens: int,
    stages: Sequence[str],
    threads: int,
    out: Path | None,
    options: dict[str, Any],
) -> tuple[ModuleType, Any]:
    """A reference and its `Request`, both of them imported once its options go together; see `dump_golden`."""
    if options.get("resume") and out is None:
        raise UsageError("--resume needs --out: what is done is kept beside it")
    refuse_options(reference, k, max_new_tokens, options)
    producer = load_reference(reference, threads)
    takes = {field.name for field in fields(producer.Request)}
    most, schedule = scheduled(k)
    refuse_unknown(reference, takes, schedule, options)
    more = ({"threads": threads} if "threads" in takes else {}) | ({"schedule": schedule} if schedule else {})
    return producer, producer.Request(
        target=target or tiny("target"),
        drafter=drafter or tiny(DRAFTERS.get(reference, "drafter")),
        prompts=prompts or tiny("prompts/chat.jsonl"),
        k=most,
        max_new_tokens=max_new_tokens,
        stages=stages,
        out=out or fresh("goldens", (target or tiny("target")).name),
        **options,
        **more,
    )


def read_prompts(path: Path, target: Path, drafter: Path) -> list[tuple[str, list[int]]]:
    """The prompts of a JSON-lines file by name, as ids of the target's tokenizer.

    Raises:
        UsageError: transformers is not installed, or the file cannot be read as prompts.
    """
    try:  # no model is loaded: torch would take seconds
        read = import_module("parity.references.prompts").read_prompts
        found: list[tuple[str, list[int]]] = read(path, target, read_pair(target, drafter).vocab)
    except ModuleNotFoundError as error:
        raise missing(error) from None
    return found


def plan_golden(
    target: Path | None,
    drafter: Path | None,
    prompts: Path | None,
    k: int | Sequence[int],
    max_new_tokens: int,
    stages: Sequence[str] = (),
    threads: int = 1,
    out: Path | None = None,
    reference: str = "own",
    **options: Any,
) -> GoldenPlan:
    """What `dump_golden` would take, of the same arguments; weights' files are opened, and not read.

    Raises:
        UsageError: torch or transformers is not installed, a checkpoint or the prompts cannot be read, or `dump_golden`
            would refuse an option before it loads a model.
    """
    _, request = _asked(reference, target, drafter, prompts, k, max_new_tokens, stages, threads, out, options)
    pair = request.target, request.drafter
    lengths = [len(ids) for _, ids in import_module("parity.references.admission").admitted(request)]
    family = import_module("parity.references.drafting").family(request.drafter)
    return golden_plan(pair, family, lengths, request.k, max_new_tokens, stages, asked_smaller(options))


def dump_again(golden: DumpView, out: Path, prompts: Path, progress: Progress = quiet) -> Dump:
    """Dump a golden's case once more: its reference, K, budget, stages, roundings and threads.

    Args:
        out: a new folder.
        prompts: the golden's prompts as a file; see `parity.golden.verify.write_prompts`.

    Raises:
        UsageError: the golden was imported, or its reference cannot make it again here.
    """
    manifest, how = golden.manifest, how_made(golden)
    return dump_golden(
        Path(manifest.model.target.path),
        Path(manifest.model.drafter.path),
        prompts,
        manifest.case.ks,
        manifest.case.max_new_tokens,
        manifest.stages,
        manifest.producer.threads,
        out,
        progress=progress,
        **how,
    )


def how_made(golden: DumpView) -> dict[str, Any]:
    """The reference that made a golden, and the options it was given.

    Raises:
        UsageError: nothing here can make it again.
    """
    producer, case = golden.manifest.producer, golden.manifest.case
    if not producer.modules:
        raise UsageError(f"{golden.folder} was imported: nothing here can dump it once more")
    if "parity.references.eagle_capture" in producer.modules:
        raise UsageError(
            f"{golden.folder} holds the official EAGLE's stages; only `--reference eagle` makes them again"
        )
    if producer.name == "vllm":
        batch, floor = int(producer.notes["prompts at a time"]), "bfloat16" in golden.variants()
        return {"reference": "vllm", "batch": batch, "floor": floor, "roundings": case.roundings}
    kept: dict[str, Any] = {"partial_kv": case.partial_kv} if case.partial_kv else {}
    kept |= {"kv_cache": case.kv_cache} if case.kv_cache else {}
    kept |= {"sample": case.sampling, "seed": case.seed} if case.sampling else {}
    kept |= asdict(Smaller.of(case)) if golden.keeps else {}
    return {"reference": "plain" if is_plain(producer) else "own", "roundings": case.roundings, **kept}


def is_plain(producer: Producer) -> bool:
    """Whether a golden is of `--reference plain`, whose target is a part of its own; nothing is imported."""
    return REFERENCES["plain"] in producer.modules and bool(producer.parts)


def baseline(golden: TrustedGolden, precision: str) -> Callable[[Sequence[int], int], float] | None:
    """Tokens per second of the reference target decoding a golden's checkpoint plainly; None without torch here."""
    try:
        load_reference("own", 1)
    except UsageError:
        return None
    greedy = import_module("parity.references.greedy").greedy
    clocked: Callable[[Sequence[int], int], float] = greedy(Path(golden.manifest.model.target.path), precision)
    return clocked


def device(name: str, golden: TrustedGolden, precision: str, limits: ProcessLimits | None = None) -> Device:
    """Build the device for a golden's case; see `builder`."""
    return builder(name, golden, limits)(precision=precision)


def layered(name: str, golden: TrustedGolden, precision: str) -> Layered:
    """What runs the layers of a device's target alone, on a golden's checkpoints.

    Raises:
        NotOffered: the device offers none.
        UsageError: the name is unknown, cannot be imported, or a checkpoint is not here.
    """
    case = golden.manifest.case
    rows = max(len(prompt.ids) for prompt in case.prompts) + case.max_new_tokens + case.k
    factory = Factory(name, *_checkpoints(golden.manifest.model), case.k, case.partial_kv)
    return factory.layered(precision, rows)


def builder(name: str, golden: TrustedGolden, limits: ProcessLimits | None = None) -> Factory | IsolatedFactory:
    """How to build a device on a golden's checkpoints: `build(precision=..., k=the golden's, **options)`.

    Args:
        name: an engine, or `package.module:factory`.
        limits: of the process of its own that the device then lives in; None has it live in this one.

    Raises:
        UsageError: the name is unknown, cannot be imported, or a checkpoint is not here.
    """
    from parity.isolation import IsolatedFactory

    if limits is None:
        return _factory(name, golden)
    case = golden.manifest.case
    pair = _checkpoints(golden.manifest.model)
    return IsolatedFactory(name, *pair, case.k, limits, case.partial_kv, case.kv_cache)


def _factory(name: str, golden: TrustedGolden) -> Factory:
    """How to build a device in this process."""
    case = golden.manifest.case
    return Factory(name, *_checkpoints(golden.manifest.model), case.k, case.partial_kv, case.kv_cache)


def gate_context(
    golden: TrustedGolden,
    device_name: str,
    precision: str,
    folder: Path,
    limits: ProcessLimits | None = None,
    rerun: Rerun | None = None,
    **rest: Any,
) -> GateContext:
    """What gates judge of a device by name, with its rotary embedding, the published configs, and the reference to run
    once more where the device hides a part.

    Args:
        folder: for its runs.
        rerun: shared with what else judges the device; one of its own where None.
        rest: as `parity.gates.context.GateContext` takes it.
    """
    from parity.gates.context import GateContext

    build = builder(device_name, golden, limits)
    rest |= dict(rotate=build.rotary(), configs=published_configs())
    rerun = rerun or ReferenceRerun(rest.get("progress", quiet))
    return GateContext(golden, device_name, build, precision, folder, rerun=rerun, **rest)


def inventory(target: Path, drafter: Path, **run: Any) -> Any:
    """What the device of this project multiplies and compiles in a run; see `parity.device.inventory`."""
    module = import_module("parity.device.inventory")
    return module.take_inventory(target, drafter, module.Run(**run))


def counterfactuals(golden: TrustedGolden, threads: int) -> tuple[Callable[[str], Any], Sequence[Any]]:
    """What makes the references under hypotheses, in a precision, on a golden's checkpoints; and those about its
    drafter."""
    load_reference("own", threads)
    module = import_module("parity.references.counterfactual")
    target, drafter = _checkpoints(golden.manifest.model)
    case = golden.manifest.case
    offered = import_module("parity.references.hypotheses").offered
    kept = case.partial_kv, case.kv_cache
    known = offered(golden.manifest.model.family, *map(bool, kept))
    return lambda precision: module.Counterfactuals(target, drafter, case.ks, precision, *kept), known


def present_engines() -> tuple[tuple[str, ...], dict[str, str]]:
    """The engines that can run here, and why each of the others cannot."""
    absent = {name: import_module(module).absent(name) for name, module in ENGINES.items()}
    here = tuple(name for name, why in absent.items() if why is None)
    return here, {name: why for name, why in absent.items() if why}


def refuse_device(name: str, target: Path, drafter: Path, k: int) -> bool:
    """Import a device without building it; whether it shows its rotation alone.

    Raises:
        ParityError: it cannot be imported, its engine cannot run here, or it takes no such option.
    """
    engine = name.partition(",")[0]
    if engine in ENGINES and (why := import_module(ENGINES[engine]).absent(engine)):
        raise UsageError(f"--device {name}: {why}")
    factory = Factory(name, target, drafter, k)
    factory.given()
    return factory.rotary() is not None


def clean_devices(golden: TrustedGolden) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the devices that ship to be clean: engines that run here, and `parity.device.variants`.

    Returns:
        Those that take what the golden's case asks for, and why the others do not, a sentence each.
    """
    variants = import_module("parity.device.variants").CLEAN
    names, left_out = [], []
    for name in (*present_engines()[0], *(f"parity.device.variants:{variant}" for variant in variants)):
        try:
            _factory(name, golden).given()
        except NotOffered as error:
            left_out.append(str(error))
        else:
            names.append(name)
    return tuple(names), tuple(left_out)


def planted_faults() -> tuple[dict[str, Any], dict[str, str]]:
    """The catalogue of planted faults by id, and the known faults that are not planted, each with the reason."""
    module = import_module("parity.device.faults")
    return module.CATALOGUE, module.LEFT_OUT


def conditional_faults(names: Sequence[str] = ()) -> dict[str, Any]:
    """Of these names those with a condition, `ID where CONDITION`; without names the sample of them.

    Raises:
        UsageError: a name that is no fault, or no condition that it can be held to.
    """
    module = import_module("parity.device.faults")
    given = {name: module.planted(name) for name in names if module.JOINT in name}
    return given if names else dict(module.CONDITIONAL)


def _checkpoints(model: Model) -> tuple[Path, Path]:
    """The folders of a golden's checkpoints, which were compared with it when it was opened for judging.

    Raises:
        UsageError: one is not here.
    """
    paths = Path(model.target.path), Path(model.drafter.path)
    for path in paths:
        if not (path / "config.json").is_file():
            raise UsageError(
                f"{path} is no checkpoint: it has no config.json; if it moved, name it with --target or --drafter"
            )
    return paths
