"""Where the instrument meets devices: by name, built on the checkpoints of a golden."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.bundled import published_configs
from parity.errors import NotOffered, UsageError
from parity.factories import ENGINES, Factory
from parity.golden.checkpoints import Model
from parity.golden.views import TrustedGolden
from parity.oracles import ReferenceRerun
from parity.progress import quiet
from parity.seam import Device, Layered

if TYPE_CHECKING:
    from parity.compare.basis import Rerun
    from parity.gates.context import GateContext
    from parity.isolation import IsolatedFactory, ProcessLimits


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
    factory = Factory(name, *checkpoints_of(golden.manifest.model), case.k, case.partial_kv)
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
    pair = checkpoints_of(golden.manifest.model)
    return IsolatedFactory(name, *pair, case.k, limits, case.partial_kv, case.kv_cache)


def _factory(name: str, golden: TrustedGolden) -> Factory:
    """How to build a device in this process."""
    case = golden.manifest.case
    return Factory(name, *checkpoints_of(golden.manifest.model), case.k, case.partial_kv, case.kv_cache)


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


def checkpoints_of(model: Model) -> tuple[Path, Path]:
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
