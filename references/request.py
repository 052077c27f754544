"""What every producer of a golden is asked, and how it ends: the same for all references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from parity.errors import UsageError
from parity.families import Family
from parity.golden.case import Case, Generation, KeptStages, PromptCase
from parity.golden.checkpoints import Checkpoint, Model
from parity.golden.digests import digest_files
from parity.golden.fields import KVScales
from parity.golden.producer import Producer
from parity.golden.provenance import checkpoint, now, with_constants
from parity.golden.writer import DumpWriter
from parity.sampling import as_text, written
from parity.seam import Sampling
from parity.stages import Named, inputs, select


@dataclass(frozen=True)
class GoldenRequest:
    """What to dump; `stages` are globs, `progress` is told (done, total, what is at work).

    `derived` says what the case was cut from: such a golden is never a default. The folder never exceeds `max_bytes`.
    """

    target: Path
    drafter: Path
    prompts: Path
    k: int
    max_new_tokens: int
    stages: Sequence[str]
    out: Path
    progress: Callable[[int, int, str], None] = lambda done, total, name: None
    derived: str = ""
    max_bytes: int | None = None

    def checkpoints(self) -> dict[str, Checkpoint]:
        """Digests of both checkpoints, to be taken before they are read."""
        return {"target": checkpoint(self.target), "drafter": checkpoint(self.drafter)}

    def wanted(self, names: Mapping[str, Named], scores: bool = True) -> list[Named]:
        """The stages asked for, and the choices, which every chained run is forced to.

        Args:
            scores: with the scores that choices are judged by; without a noise floor they are judged exactly.
        """
        forced = [named for named in names.values() if named.stage.forced]
        kept = set(select(self.stages, names)) | {named.name for named in forced}
        kept |= {source for named in forced for source in inputs(named, names)} if scores else set()
        return [named for name, named in names.items() if name in kept]


@dataclass(frozen=True)
class Numbered:
    """How a golden's tokens are drawn: settings, the seed of the random numbers, and each prompt's.

    Args:
        uniforms: float32 [budget, 4, K+1] of each prompt.
    """

    settings: Sampling
    seed: int
    uniforms: Sequence[np.ndarray]


@dataclass(frozen=True)
class Dumped:
    """What a producer dumped: who it is, layers of target and drafter, and each prompt's id, tokens and generation.

    `constants` are what it read of the two config.json files, `partial_kv` the pages that a drafter's row attends to,
    `kv_cache` the formats of the caches; see `parity.seam.Description`. `kv_scales` are by side, part and layer.
    `draft_vocabulary`: see `parity.golden.checkpoints.Model`. `kept` and `positions`: see `parity.golden.case.Case`.
    """

    producer: Producer
    layers: tuple[int, int]
    stages: Sequence[Named]
    prompts: Sequence[tuple[str, Sequence[int], Generation]]
    roundings: int = 1
    constants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    family: Family = "p-eagle"
    draft_vocabulary: tuple[int, ...] | None = None
    partial_kv: str = ""
    kv_cache: str = ""
    kv_scales: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    schedule: tuple[int, ...] = ()
    sampling: Numbered | None = None
    kept: tuple[KeptStages, ...] = ()
    positions: str = ""


def finish(writer: DumpWriter, request: GoldenRequest, checkpoints: Mapping[str, Checkpoint], dumped: Dumped) -> None:
    """Write the manifest, which makes the folder a golden.

    Raises:
        UsageError: a checkpoint is not any more what it was before.
    """
    if request.checkpoints() != checkpoints:
        raise UsageError("a checkpoint changed while it was being dumped; nothing was written")
    (target, drafter), sampling = dumped.layers, dumped.sampling
    uniforms = map(as_text, sampling.uniforms) if sampling else [""] * len(dumped.prompts)
    writer.finish(
        derived=request.derived,
        kind="golden",
        stages=[named.name for named in dumped.stages],
        created=now(),
        producer=dumped.producer,
        model=with_constants(
            Model(
                **checkpoints,
                num_layers=target,
                num_drafter_layers=drafter,
                family=dumped.family,
                draft_vocabulary=dumped.draft_vocabulary,
            ),
            dumped.constants,
        ),
        case=Case(
            k=request.k,
            schedule=dumped.schedule,
            max_new_tokens=request.max_new_tokens,
            precision="float32",
            mode="golden",
            forced=(),
            roundings=dumped.roundings,
            partial_kv=dumped.partial_kv,
            kv_cache=dumped.kv_cache,
            kv_scales=cast("KVScales", dumped.kv_scales),
            sampling=written(sampling.settings) if sampling else "",
            seed=sampling.seed if sampling else 0,
            kept=dumped.kept,
            positions=dumped.positions,
            prompts_digest=digest_files([request.prompts]),
            prompts=tuple(
                PromptCase(id=name, ids=tuple(ids), generation=one, uniforms=numbers)
                for (name, ids, one), numbers in zip(dumped.prompts, uniforms, strict=True)
            ),
        ),
    )
