"""The golden's producer: the references in float32, then twice in bfloat16 on the same tokens.

The float32 run is the truth. The bfloat16 run that follows its tokens is the chained noise floor; the
one whose every stage starts from the float32 run's input is the local noise floor. Several roundings of
each are pooled where the request asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers.utils import logging

from parity.errors import UsageError
from parity.golden.manifest import Case, Checkpoint, Generation, Model, PromptCase
from parity.golden.provenance import checkpoint, digest_files, now, producer
from parity.golden.sources import reached
from parity.golden.store import DumpWriter
from parity.stages import Named, declared, inputs, select
from parity.trace import ForcingTrace, Tensors, Trace
from references.drafting import is_chain, load_loop
from references.loop import Result, SpeculativeLoop
from references.prompts import read_prompts
from references.roundings import Roundings, pooled

FLOORS = {"bfloat16": "chained", "bfloat16.local": "local"}


@dataclass(frozen=True)
class Request:
    """What to dump; `stages` are globs, `progress` is told (done, total, prompt id).

    `roundings` is the number of bfloat16 runs behind each floor.
    """

    target: Path
    drafter: Path
    prompts: Path
    k: int
    max_new_tokens: int
    stages: Sequence[str]
    out: Path
    roundings: int = 1
    progress: Callable[[int, int, str], None] = lambda done, total, name: None


@dataclass(frozen=True)
class Produced:
    """Who computes: a name, `load(target, drafter, dtype, k)` to a loop, and modules; None: what these references are."""

    name: str
    load: Callable[..., SpeculativeLoop]
    modules: Collection[str] | None = None


def dump_golden(request: Request, by: Produced | None = None) -> Path:
    """Run the references over every prompt and write a golden folder.

    Args:
        by: who computes; this project's own references where None.

    Raises:
        UsageError: a checkpoint, the prompts, K, the budget or a stage glob does not fit.
    """
    logging.disable_progress_bar()
    checkpoints = _checkpoints(request)
    by = by or Produced(f"references: hf_target + {'eagle3' if is_chain(request.drafter) else 'peagle'}", load_loop)
    truth, rounded = (by.load(request.target, request.drafter, dtype, request.k) for dtype in (torch.float32, torch.bfloat16))
    roundings = Roundings(rounded.target.model, rounded.drafter)
    prompts = read_prompts(request.prompts, request.target, truth.target.config.vocab_size)
    for _, ids in prompts:
        truth.admit(len(ids), request.max_new_tokens)
    names = declared(truth.target.config.num_hidden_layers, truth.drafter.config.num_layers)
    wanted = set(select(request.stages, names)) | _choices(names)
    stages = [named for name, named in names.items() if name in wanted]

    def passes(ids: Sequence[int], record: Trace, mode: str) -> Iterator[Tensors]:
        for rounding in range(request.roundings):
            roundings.choose(rounding)
            floor = ForcingTrace(names, lambda r, s: record.tensors.get((r, s)), mode, keep=wanted.__contains__)
            rounded.run(ids, request.max_new_tokens, floor)
            yield floor.tensors

    with DumpWriter(request.out) as writer:
        cases = []
        for number, (name, ids) in enumerate(prompts):
            request.progress(number, len(prompts), name)
            record = Trace(names)
            result = truth.run(ids, request.max_new_tokens, record)
            writer.add(number, "float32", stages, _kept(record.tensors, wanted))
            for variant, mode in FLOORS.items():
                writer.add(number, variant, stages, pooled(record.tensors, passes(ids, record, mode)))
            cases.append(PromptCase(id=name, ids=tuple(ids), generation=_generation(result)))
        request.progress(len(prompts), len(prompts), "")
        if _checkpoints(request) != checkpoints:
            raise UsageError("a checkpoint changed while it was being dumped; nothing was written")
        writer.finish(
            kind="golden",
            stages=[named.name for named in stages],
            created=now(),
            producer=producer(
                by.name,
                _modules(truth, by.modules),
                ("torch", "transformers", "safetensors", "numpy"),
                torch.get_num_threads(),
            ),
            model=_model(checkpoints, names),
            case=Case(
                k=request.k,
                max_new_tokens=request.max_new_tokens,
                precision="float32",
                mode="golden",
                forced=(),
                roundings=request.roundings,
                prompts_digest=digest_files([request.prompts]),
                prompts=tuple(cases),
            ),
        )
    return request.out


def _kept(tensors: Tensors, wanted: set[str]) -> Tensors:
    return {place: value for place, value in tensors.items() if place[1] in wanted}


def _generation(result: Result) -> Generation:
    return Generation(
        emitted=result.emitted,
        acceptance_length=result.acceptance_length,
        accepted_drafts=result.accepted_drafts,
        finish=result.finish,
    )


def _choices(names: dict[str, Named]) -> set[str]:
    """The choices, which every chained run is forced to, and the scores that they are judged by."""
    forced = [named for named in names.values() if named.stage.forced]
    return {named.name for named in forced} | {source for named in forced for source in inputs(named, names)}


def _modules(loop: SpeculativeLoop, given: Collection[str] | None) -> set[str]:
    """The given modules, or the references' own, and the one that the target's maths comes from."""
    own = set(given) if given is not None else {name for name in reached([__name__]) if name.split(".")[0] == __name__.split(".")[0]}
    return own | {type(loop.target.model).__module__}


def _checkpoints(request: Request) -> dict[str, Checkpoint]:
    """Digests of both checkpoints, taken before they are read and once more when all is done."""
    return {"target": checkpoint(request.target), "drafter": checkpoint(request.drafter)}


def _model(checkpoints: dict[str, Checkpoint], names: dict[str, Named]) -> Model:
    target = {named.layer for name, named in names.items() if name.startswith("target.layers.")}
    drafter = {named.layer for name, named in names.items() if name.startswith("drafter.layers.")}
    return Model(**checkpoints, num_layers=len(target), num_drafter_layers=len(drafter))
