"""The only place where the instrument meets references and devices: by name, when a command needs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from pickle import UnpicklingError
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO
from weakref import finalize

from parity.errors import UsageError
from parity.factories import ENGINES, Factory, multiplier  # noqa: F401  as commands find it
from parity.golden.manifest import Model
from parity.golden.store import Dump
from parity.partial import scratch
from parity.plain import echo
from parity.seam import Device

if TYPE_CHECKING:
    from parity.isolation import IsolatedFactory, Limits

REFERENCES = {
    "own": "parity.references.dump",
    "plain": "parity.references.plain",
    "vllm": "parity.references.vllm_capture.dump",
    "eagle": "parity.references.eagle_capture",
}
"""Who can make a golden: the PyTorch references, the same with the plain target, vLLM in its own environment, the official EAGLE-3 of a checkout."""


def reference(name: str, threads: int) -> ModuleType:
    """The producer of this name, torch computing on this many threads: its `Request` and `dump_golden`.

    The fields of a `Request` are the options that its producer takes.

    Raises:
        UsageError: torch or transformers is not installed.
    """
    try:
        import_module("torch").set_num_threads(threads)
        return import_module(REFERENCES[name])
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the references need {error.name}: pip install 'parity-harness[references]' -c constraints.txt"
        ) from None


def baseline(golden: Dump, precision: str) -> Callable[[Sequence[int], int], float] | None:
    """Tokens per second of the reference target decoding a golden's checkpoint plainly; None without torch here."""
    try:
        reference("own", 1)
    except UsageError:
        return None
    return import_module("parity.references.greedy").greedy(Path(golden.manifest.model.target.path), precision)


def torch_load(source: Path | BinaryIO, name: str) -> Any:
    """Read a torch file as `torch.load(weights_only=True)` does: tensors and plain containers, nothing executed.

    Raises:
        UsageError: torch is not installed, or the file holds anything else or is damaged.
    """
    try:
        load = import_module("torch").load
    except ModuleNotFoundError:
        raise UsageError(
            f"{name} is a torch file and torch is not installed: pip install 'parity-harness[references]' "
            "-c constraints.txt, or save .safetensors or .npy"
        ) from None
    from parity.imports.arrays import refuse_packed

    refuse_packed(source, name)
    try:
        return load(source, map_location="cpu", weights_only=True)
    except UnpicklingError:
        raise UsageError(
            f"{name} holds more than tensors, or is damaged: torch.load refuses it with weights_only; save tensors only"
        ) from None
    except Exception as error:  # whatever a damaged file raises
        raise UsageError(f"{name} is no torch file, or is damaged ({type(error).__name__})") from None


def device(name: str, golden: Dump, precision: str, limits: Limits | None = None) -> Device:
    """Build the device for a golden's case; see `builder`."""
    return builder(name, golden, limits)(precision=precision)


def builder(name: str, golden: Dump, limits: Limits | None = None) -> Factory | IsolatedFactory:
    """How to build a device on a golden's checkpoints: `build(precision=..., k=the golden's, **options)`.

    Args:
        name: an engine, or `package.module:factory`.
        limits: of the process of its own that the device then lives in; None has it live in this one.

    Raises:
        UsageError: the name is unknown, cannot be imported, or the checkpoints are not the golden's.
    """
    from parity.isolation import IsolatedFactory

    case = (name, *_same_checkpoints(golden, golden.manifest.model), golden.manifest.case.k)
    return Factory(*case) if limits is None else IsolatedFactory(*case, limits)


def inventory(target: Path, drafter: Path, **run: Any) -> Any:
    """What the device of this project multiplies and compiles in a run; see `parity.device.inventory`."""
    module = import_module("parity.device.inventory")
    return module.take_inventory(target, drafter, module.Run(**run))


def counterfactuals(golden: Dump, threads: int) -> tuple[Callable[[str], Any], Sequence[Any]]:
    """What makes the references under hypotheses, in a precision, on a golden's checkpoints; and the hypotheses."""
    reference("own", threads)
    module = import_module("parity.references.counterfactual")
    target, drafter = _same_checkpoints(golden, golden.manifest.model)
    known = import_module("parity.references.hypotheses").HYPOTHESES
    return lambda precision: module.Counterfactuals(target, drafter, golden.manifest.case.k, precision), known


class Rerun:
    """`parity.compare.basis.Rerun` by the PyTorch references, each run's once; what it writes goes with it."""

    def __init__(self) -> None:
        self._made: dict[tuple, Dump] = {}
        self._folders = ExitStack()
        finalize(self, self._folders.close)

    def __call__(self, golden: Dump, run: Dump, prompts: Sequence[int]) -> Dump:
        """The reference with the run's experts, on as many threads as the golden was made with.

        Raises:
            ParityError: torch is not installed, the golden is not the references' own, or its checkpoints are not here.
        """
        from parity.cli.common import progress

        key = golden.folder, run.folder, run.manifest.case.mode, tuple(prompts)
        if key not in self._made:
            reference("own", max(golden.manifest.producer.threads, 1))
            folder = self._folders.enter_context(scratch("rerun"))
            with progress("the reference with the run's experts") as bar:
                self._made[key] = Dump(
                    import_module("parity.references.rerun").rerun(golden, run, prompts, folder / "golden", bar)
                )
        return self._made[key]


def present_engines() -> tuple[tuple[str, ...], dict[str, str]]:
    """The engines that can run here, and why each of the others cannot."""
    absent = {name: import_module("parity.device").absent(name) for name in ENGINES}
    here = tuple(name for name, why in absent.items() if why is None)
    return here, {name: why for name, why in absent.items() if why}


def clean_devices() -> tuple[str, ...]:
    """Names of the devices that ship to be clean: every engine that runs here, and every variant of `parity.device.variants`."""
    return (
        *present_engines()[0],
        *(f"parity.device.variants:{name}" for name in import_module("parity.device.variants").CLEAN),
    )


def planted_faults() -> tuple[dict[str, Any], dict[str, str]]:
    """The catalogue of planted faults by id, and the known faults that are not planted, each with the reason."""
    module = import_module("parity.device.faults")
    return module.CATALOGUE, module.LEFT_OUT


def _same_checkpoints(golden: Dump, model: Model) -> tuple[Path, Path]:
    """The golden's checkpoints, once nothing behind it is found to have changed."""
    judging(golden)
    paths = Path(model.target.path), Path(model.drafter.path)
    for path in paths:
        if not (path / "config.json").is_file():
            raise UsageError(
                f"{path} is no checkpoint: it has no config.json; if it moved, name it with --target or --drafter"
            )
    return paths


def judging(golden: Dump) -> None:
    """Every command that judges by a golden comes through here; what cannot be told is said on standard error.

    Raises:
        UsageError: the golden is stale, or names no source.
    """
    from parity.golden.trust import refuse_unnamed

    refuse_unnamed(golden.manifest.producer)
    current(golden)


def current(golden: Dump) -> None:
    """As `judging`, for a golden that judges nobody.

    Raises:
        UsageError: it is stale.
    """
    from parity.golden.trust import refuse_stale

    for note in refuse_stale(golden):
        echo(f"parity: {note}", err=True)
