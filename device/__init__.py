"""The system under test: gpt-oss with a P-EAGLE drafter, greedy, in NumPy-style kernels."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from parity.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from parity.device.asynchronous import Asynchronous
    from parity.device.batch import Batch
    from parity.device.checkpoint import Checkpoint
    from parity.device.engines import AnyEngine
    from parity.device.layerwise import LayeredTarget
    from parity.device.pipeline import Pipeline
    from parity.seam import Operation, Work

ENGINES = {
    "numpy": "parity.device.engines.numpy_engine",
    "xla": "parity.device.engines.xla_engine",
    "nkipy": "parity.device.engines.nkipy_engine",
    "neuron": "parity.device.engines.neuron_engine",
}
STORED = {"numpy": "parity.device.engines.stored", "xla": "parity.device.engines.stored_xla"}
"""The same over weights that stay in their files."""
PRECISIONS = ("bfloat16", "float32")
LOOPS = ("synchronous", "asynchronous")


def load(
    target: str | Path,
    drafter: str | Path,
    k: int,
    precision: str = "bfloat16",
    engine: str = "numpy",
    max_positions: int | None = None,
    batch: int = 1,
    tp: int = 1,
    moe: str = "masked",
    partial_kv: str = "",
    kv_cache: str = "",
    lanes: int = 1,
    prefill_rows: int | None = None,
    weights: str = "memory",
    loop: str = "synchronous",
    chunk: int | None = None,
) -> Pipeline | Batch | Asynchronous:
    """Load a pair of checkpoints as a `parity.seam.Device`.

    Args:
        target: checkpoint folder of a gpt-oss model.
        drafter: checkpoint folder of a P-EAGLE drafter.
        k: K, drafts per round.
        precision: `bfloat16` or `float32`, of weights and activations.
        engine: the machine that runs the kernels, a key of `ENGINES`.
        max_positions: rows of the caches; the smaller of the two max_position_embeddings where None.
        batch: B, copies of the sequence that run together; the first one is shown.
        tp: TP, tensor-parallel ranks; see `parity.device.sharding`.
        moe: `masked` or `gathered`, the formulation of the experts; see `parity.device.kernels.moe`.
        partial_kv: the pages of its cache that a row of the drafter attends to; see `parity.partial_kv`.
        kv_cache: the formats of the caches; see `parity.kv_cache`.
        prefill_rows: rows of a prefill that run at a time; all of them where None.
        weights: `memory`, or `files`: of the engines in `STORED`, large weights stay in their files until a kernel uses
            them.
        lanes: sequences that run together, each with a tap of its own (`parity.seam.Batched`); one where 1.
        loop: `synchronous`, verb by verb, or `asynchronous`: rounds are sent ahead of what is read, and the device is a
            `parity.seam.Looping`; see `parity.device.asynchronous`.
        chunk: rounds that the asynchronous loop reads together, 1 where None; the synchronous loop's passes are as wide
            as those of that loop, where it is given.

    Raises:
        UsageError: an option or a checkpoint that does not fit.
    """
    machine = _machine(engine)
    check_precision(precision)
    counts = ("sequences", batch), ("sequences", lanes), ("rows", prefill_rows), ("rounds", chunk)
    for option, (counted, number) in zip(("batch", "lanes", "prefill_rows", "chunk"), counts, strict=True):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise UsageError(f"{option}: {number!r} is no number of {counted}, at least 1 is needed.")
    if loop not in LOOPS:
        raise UsageError(f"loop: {loop!r} is unknown; there are {', '.join(LOOPS)}.")
    if loop == "asynchronous" and lanes > 1:
        raise UsageError("loop=asynchronous goes with one sequence behind the seam, or with copies of it: batch.")
    if min(batch, lanes) > 1:
        raise UsageError("batch and lanes exclude each other: copies of one sequence, or sequences of their own.")
    from parity.device.assembly import assemble

    machine, read = _placed(weights, machine, max(batch, lanes, tp))
    if batch > 1:
        from parity.device.engines.lanes import with_lanes

        machine = with_lanes(machine, batch)
    pair = Path(target), Path(drafter)
    pipeline = assemble(*pair, k, precision, machine, max_positions, tp, moe, read, partial_kv, kv_cache)
    pipeline.prefill_rows, pipeline.chunk = prefill_rows, chunk
    if loop == "asynchronous":
        from parity.device.asynchronous import Asynchronous

        return Asynchronous(pipeline, chunk or 1)
    if lanes == 1:
        return pipeline
    from parity.device.batch import Batch

    return Batch(pipeline, lanes)


def layered(
    target: str | Path,
    drafter: str | Path,
    k: int,
    precision: str = "bfloat16",
    engine: str = "numpy",
    max_positions: int | None = None,
    moe: str = "masked",
    partial_kv: str = "",
    weights: str = "memory",
) -> LayeredTarget:
    """Open a pair of checkpoints as a `parity.seam.Layered`; arguments as for `load`.

    Raises:
        UsageError: an option or a checkpoint does not fit.
    """
    check_precision(precision)
    from parity.device.layerwise import layered

    machine, read = _placed(weights, _machine(engine), 1)
    options = dict(max_positions=max_positions, moe=moe, read=read, partial_kv=partial_kv)
    return layered(Path(target), Path(drafter), k, precision, machine, **options)


def check_precision(precision: str) -> None:
    """UsageError for a precision that this device does not compute in."""
    if precision not in PRECISIONS:
        raise UsageError(f"precision: {precision!r} is unknown; there are {', '.join(PRECISIONS)}.")


def _placed(weights: str, machine: AnyEngine, copies: int) -> tuple[AnyEngine, type[Checkpoint]]:
    """The engine for weights that lie there, and what reads them."""
    from parity.device.checkpoint import Checkpoint

    if weights == "memory":
        return machine, Checkpoint
    if weights != "files":
        raise UsageError(f"weights: {weights!r} is unknown; there are memory, files.")
    if machine.NAME not in STORED or copies > 1:
        raise UsageError(f"weights=files goes with the engines {' and '.join(STORED)}, one sequence and one rank.")
    from parity.device.stored import StoredCheckpoint

    return import_module(STORED[machine.NAME]).engine(), StoredCheckpoint


def absent(engine: str) -> str | None:
    """Why this engine cannot run here; None where it can."""
    try:
        _machine(engine)
    except UsageError as error:
        return str(error)
    return None


def rotate(folder: Path, side: str, x: np.ndarray, positions: np.ndarray, engine: str = "numpy") -> np.ndarray:
    """Rotate head vectors as a pass of this side under this config.json would; a `parity.seam.Rotary`.

    Raises:
        UsageError: the engine, the config or a position is none that this device knows.
    """
    from parity.device.rotary import rotate

    return rotate(folder, side, x, positions, _machine(engine))


def multiply(left: np.ndarray, right: np.ndarray, dtype: str, engine: str = "numpy") -> np.ndarray:
    """Multiply as the linear layers of a pass do; a `parity.seam.Multiply`.

    Raises:
        UsageError: the engine is none that this device knows.
    """
    from parity.device.product import multiply

    return multiply(left, right, dtype, _machine(engine))


def operate(operation: Operation, *arrays: np.ndarray, engine: str = "numpy") -> np.ndarray | list[np.ndarray]:
    """Carry out one operation as a pass does; a `parity.seam.Operate`.

    Raises:
        UsageError: the engine is none that this device knows.
    """
    from parity.device.operation import operate

    return operate(operation, arrays, _machine(engine))


def work(
    target: Path, drafter: Path, k: int, context: int, precision: str, tp: int = 1, moe: str = "masked"
) -> dict[str, Work]:
    """FLOPs and bytes of each phase behind so many positions, of one rank; a `parity.seam.Works`.

    Raises:
        UsageError: a config or an option that does not fit.
    """
    from parity.device.arithmetic import work

    return work(target, drafter, k, context, precision, tp, moe)


def _machine(engine: str) -> AnyEngine:
    if engine not in ENGINES:
        raise UsageError(f"engine: {engine!r} is unknown; there is {', '.join(ENGINES)}.")
    try:
        module = import_module(ENGINES[engine])
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the engine {engine} needs {error.name}: pip install 'parity-harness[{engine}]' -c constraints.txt"
        ) from None
    made: AnyEngine = module.engine() if hasattr(module, "engine") else module
    return made
