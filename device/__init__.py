"""The system under test: gpt-oss with a P-EAGLE drafter, greedy, in NumPy-style kernels."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from parity.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from parity.device.batch import Batch
    from parity.device.checkpoint import Checkpoint
    from parity.device.engines import AnyEngine
    from parity.device.pipeline import Pipeline
    from parity.seam import Operation

ENGINES = {
    "numpy": "parity.device.engines.numpy_engine",
    "xla": "parity.device.engines.xla_engine",
    "nkipy": "parity.device.engines.nkipy_engine",
    "neuron": "parity.device.engines.neuron_engine",
}
PRECISIONS = ("bfloat16", "float32")


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
    lanes: int = 1,
    prefill_rows: int | None = None,
    weights: str = "memory",
) -> Pipeline | Batch:
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
        prefill_rows: rows of a prefill that run at a time; all of them where None.
        weights: `memory`, or `files`: of the engine numpy, large weights stay in their files until a kernel uses them.
        lanes: sequences that run together, each with a tap of its own (`parity.seam.Batched`); one where 1.

    Raises:
        UsageError: an option or a checkpoint that does not fit.
    """
    machine = _machine(engine)
    if precision not in PRECISIONS:
        raise UsageError(f"precision: {precision!r} is unknown; there are {', '.join(PRECISIONS)}.")
    for option, number in (("batch", batch), ("lanes", lanes), ("prefill_rows", prefill_rows or 1)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            counted = "rows" if option == "prefill_rows" else "sequences"
            raise UsageError(f"{option}: {number!r} is no number of {counted}, at least 1 is needed.")
    if min(batch, lanes) > 1:
        raise UsageError("batch and lanes exclude each other: copies of one sequence, or sequences of their own.")
    from parity.device.assembly import assemble

    machine, read = _placed(weights, machine, max(batch, lanes, tp))
    if batch > 1:
        from parity.device.engines.lanes import with_lanes

        machine = with_lanes(machine, batch)
    pair = Path(target), Path(drafter)
    pipeline = assemble(*pair, k, precision, machine, max_positions, tp, moe, read, partial_kv)
    pipeline.prefill_rows = prefill_rows
    if lanes == 1:
        return pipeline
    from parity.device.batch import Batch

    return Batch(pipeline, lanes)


def _placed(weights: str, machine: AnyEngine, copies: int) -> tuple[AnyEngine, type[Checkpoint]]:
    """The engine for weights that lie there, and what reads them."""
    from parity.device.checkpoint import Checkpoint

    if weights == "memory":
        return machine, Checkpoint
    if weights != "files":
        raise UsageError(f"weights: {weights!r} is unknown; there are memory, files.")
    if machine.NAME != "numpy" or copies > 1:
        raise UsageError("weights=files goes with the engine numpy, one sequence and one rank.")
    from parity.device.engines import stored
    from parity.device.stored import StoredCheckpoint

    return stored.engine(), StoredCheckpoint


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
