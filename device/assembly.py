"""Puts checkpoints, engine and options together into one pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from parity.device.checkpoint import Checkpoint, Tensors
from parity.device.config import MOE, TargetConfig, target_config
from parity.device.dflash import DFlash
from parity.device.draft_model import DraftModel
from parity.device.drafter import Drafter
from parity.device.drafter_config import (
    DFlashConfig,
    DrafterConfig,
    DraftModelConfig,
    Eagle3Config,
    NGramConfig,
    PEagleConfig,
    drafter_config,
)
from parity.device.eagle3 import Eagle3
from parity.device.engines import AnyEngine, ranks
from parity.device.ngram import NGram
from parity.device.peagle import PEagle
from parity.device.pipeline import Pipeline
from parity.device.sharding import shard
from parity.device.target import Target
from parity.device.weights import drafter_weights, target_weights
from parity.errors import UsageError
from parity.kv_cache import KVFormats
from parity.partial_kv import PartialKV

FAMILIES: dict[type[DrafterConfig], type[Drafter]] = {
    PEagleConfig: PEagle,
    Eagle3Config: Eagle3,
    DraftModelConfig: DraftModel,
    DFlashConfig: DFlash,
}
"""What each family of drafters with weights is on this side, by what its config.json was read to."""


@dataclass(frozen=True)
class Models:
    """What a pipeline is made of: the target, the drafter of each family that is offered, the host loop."""

    target: type[Target]
    drafters: Mapping[type[DrafterConfig], type[Drafter]]
    pipeline: type[Pipeline]


NUMPY_STYLE = Models(Target, FAMILIES, Pipeline)
"""The kernels in NumPy style, which run on every engine."""
_DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float32": np.dtype(np.float32)}


def assemble(
    target: Path,
    drafter: Path,
    k: int,
    precision: str,
    engine: AnyEngine,
    max_positions: int | None,
    tp: int = 1,
    moe: str = MOE[0],
    read: Callable[[Path], Tensors] = Checkpoint,
    partial_kv: str = "",
    kv_cache: str = "",
    models: Models = NUMPY_STYLE,
    weights: tuple[Callable[..., Any], Callable[..., Any]] = (target_weights, drafter_weights),
) -> Pipeline:
    """Read both checkpoints and build the pipeline; arguments as for `parity.device.load`, `read` opens a folder.

    Args:
        models: what it is made of.
        weights: what reads the target's and the drafter's.

    Raises:
        UsageError: an option or a checkpoint does not fit, or the drafter is of a family that `models` lacks.
    """
    target_files, drafter_files = read(target), read(drafter)
    outer = replace(target_config(target_files), moe=_formulation(moe))
    inner = drafter_config(drafter_files, outer)
    _check_drafts(k, inner, drafter)
    family = NGram.family if isinstance(inner, NGramConfig) else FAMILIES[type(inner)].family
    if models is not NUMPY_STYLE and type(inner) not in models.drafters:
        offered = " and ".join(one.family for one in models.drafters.values())
        raise UsageError(f"{drafter}: a {family} drafter; this device offers {offered} ones.")
    (rows, limit), dtype = _rows(max_positions, outer, inner), _DTYPES[precision]
    formats = KVFormats.of(kv_cache, family, partial_kv)
    if kv_cache and engine.NAME in ("nkipy", "neuron"):
        raise UsageError(f"kv_cache: the engine {engine.NAME} keeps its caches in the dtype of its passes.")
    outer = replace(outer, kv_format=formats.target)
    inner = replace(inner, partial=PartialKV.of(partial_kv, family, rows), kv_format=formats.drafter)
    sharding = shard(tp, outer, inner)
    if tp > 1:
        engine = engine.spread(sharding) if hasattr(engine, "spread") else ranks.engine(engine, sharding)
    outer_weights = weights[0](target_files, outer)
    model = models.target(outer, outer_weights, rows, engine, dtype)
    if isinstance(inner, NGramConfig):
        return Pipeline(model, NGram(inner), k, engine, precision, limit)
    inner_weights = weights[1](drafter_files, inner, outer_weights[0])
    own = models.drafters[type(inner)](inner, inner_weights, rows, engine, dtype, k)
    return models.pipeline(model, own, k, engine, precision, limit)


def _formulation(moe: str) -> str:
    if moe not in MOE:
        raise UsageError(f"moe: {moe!r} is unknown; there are {', '.join(MOE)}.")
    return moe


def _check_drafts(k: int, drafter: DrafterConfig | NGramConfig, folder: Path) -> None:
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise UsageError(f"k: {k!r} is no number of drafts, at least 1 is needed.")
    if drafter.max_drafts is not None and k > drafter.max_drafts:
        raise UsageError(
            f"k: {k} drafts are more than field '{drafter.limit}' of {folder / 'config.json'} allows: "
            f"{drafter.max_drafts}."
        )


def _rows(asked: int | None, target: TargetConfig, drafter: DrafterConfig | NGramConfig) -> tuple[int, str]:
    """Rows of the caches, and what limits them, in words."""
    largest, side = min((target.max_positions, "target"), (drafter.max_positions, "drafter"))
    limit = f"the {side}'s max_position_embeddings"
    if asked is None:
        return largest, limit
    if not 1 <= asked <= largest:
        raise UsageError(f"max_positions: {asked} is outside 1 to {largest}, {limit}.")
    return asked, "the option max_positions"
