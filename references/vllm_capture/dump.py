"""A golden out of vLLM: run it in float32, then in bfloat16 on the same choices, and write down both.

The bfloat16 run follows the float32 one's tokens, drafts and experts: the chained noise floor. vLLM's layers cannot be
started from given inputs and its paged caches are no plain rows: such a golden has no local floor and no cache stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from parity.errors import UsageError
from parity.golden.manifest import Case, Checkpoint, Model, PromptCase
from parity.golden.provenance import checkpoint, digest_files, now
from parity.golden.store import DumpWriter
from parity.stages import Named, declared, inputs, select
from parity.trace import Tensors
from references.prompts import read_prompts
from references.vllm_capture.adapt import adapted, check_target, read_config
from references.vllm_capture.case import admit, describe, eos
from references.vllm_capture.environment import find_python, run_job
from references.vllm_capture.rounds import Rounds
from references.vllm_capture.steps import read_steps


@dataclass(frozen=True)
class Request:
    """What to dump, as `references.dump.Request`; `progress` is told (done, total, precision).

    `python` is the one that has vLLM (found where None), `batch` the number of prompts that vLLM runs at a time.
    Without `floor` there is no bfloat16 run, and only a float32 device can be held against the golden.
    """

    target: Path
    drafter: Path
    prompts: Path
    k: int
    max_new_tokens: int
    stages: Sequence[str]
    out: Path
    python: Path | None = None
    batch: int = 1
    threads: int = 1
    floor: bool = True
    progress: Callable[[int, int, str], None] = lambda done, total, name: None


def dump_golden(request: Request) -> Path:
    """Run vLLM over every prompt and write a golden folder.

    Raises:
        UsageError: no vLLM of a known version, a checkpoint that it cannot run, or bad prompts, K, budget or stages.
    """
    python = find_python(request.python)
    digests = _checkpoints(request)
    check_target(request.target)
    layers = [read_config(folder)["num_hidden_layers"] for folder in (request.target, request.drafter)]
    names = {name: named for name, named in declared(*layers).items() if named.stage.side != "kv"}
    wanted = set(select(request.stages, names)) | _choices(names, scores=request.floor)
    stages = [named for name, named in names.items() if name in wanted]
    prompts = read_prompts(request.prompts, request.target, read_config(request.target)["vocab_size"])
    for _, ids in prompts:
        admit(request, len(ids))
    with TemporaryDirectory(prefix="parity-vllm-") as work, DumpWriter(request.out) as writer:
        drafter, notes = adapted(request.drafter, request.target, Path(work))
        for precision, result, found in _runs(request, python, drafter, [ids for _, ids in prompts], Path(work)):
            for number, rounds in enumerate(found):
                writer.add(number, precision, stages, _kept(rounds.tensors, wanted, precision))
            truth = found if precision == "float32" else truth
        if _checkpoints(request) != digests:
            raise UsageError("a checkpoint changed while it was being dumped; nothing was written")
        writer.finish(
            kind="golden",
            stages=[named.name for named in stages],
            created=now(),
            producer=describe(result, request, notes),
            model=Model(**digests, num_layers=layers[0], num_drafter_layers=layers[1]),
            case=_case(request, prompts, truth),
        )
    return request.out


def _runs(
    request: Request, python: Path, drafter: Path, prompts: Sequence[Sequence[int]], work: Path
) -> Iterator[tuple[str, dict, list[Rounds]]]:
    """Run vLLM once in each precision: the precision, what vLLM said of itself, and each prompt's rounds."""
    precisions = ("float32", "bfloat16") if request.floor else ("float32",)
    job = {
        "target": str(request.target.resolve()),
        "drafter": str(drafter.resolve()),
        "prompts": [list(ids) for ids in prompts],
        "k": request.k,
        "batch": request.batch,
        "max_new_tokens": request.max_new_tokens,
        "eos": eos(request.target),
    }
    log = request.out.with_name(f"{request.out.name}.vllm.log")
    for number, precision in enumerate(precisions):
        request.progress(number, len(precisions), precision)
        if number:
            job["forced"] = str(work / precisions[0])
        result = run_job(python, job | {"precision": precision}, work / precision, request.threads, log)
        yield precision, result, _rounds(job, result, work / precision)
    request.progress(len(precisions), len(precisions), "")
    log.unlink()


def _rounds(job: dict, result: dict, folder: Path) -> list[Rounds]:
    """Each prompt's rounds, held against what vLLM says that it emitted."""
    steps, found = read_steps(folder), []
    for ids, name, emitted in zip(job["prompts"], result["requests"], result["emitted"], strict=True):
        rounds = Rounds(steps, name, len(ids), job["k"], job["max_new_tokens"], job["eos"])
        if rounds.emitted != emitted or not ("forced" in job or rounds.consistent):
            raise UsageError(f"vLLM emitted {emitted} for prompt {name}, its recorded steps say {rounds.emitted}")
        found.append(rounds)
    return found


def _kept(tensors: Tensors, wanted: set[str], precision: str) -> Tensors:
    """The declared stages; what was accepted is the float32 run's, which the other one follows."""
    own = precision == "float32"
    return {place: value for place, value in tensors.items() if place[1] in wanted and (own or "accept." not in place[1])}


def _choices(names: dict[str, Named], scores: bool) -> set[str]:
    """The choices, which every chained run is forced to, and the scores that they are judged by.

    Without a floor choices are judged exactly: no score is asked.
    """
    forced = [named for named in names.values() if named.stage.forced]
    sources = {source for named in forced for source in inputs(named, names)}
    return {named.name for named in forced} | (sources if scores else set())


def _checkpoints(request: Request) -> dict[str, Checkpoint]:
    return {"target": checkpoint(request.target), "drafter": checkpoint(request.drafter)}


def _case(request: Request, prompts: Sequence[tuple[str, list[int]]], truth: Sequence[Rounds]) -> Case:
    """What was asked for, and what each prompt emitted."""
    return Case(
        k=request.k,
        max_new_tokens=request.max_new_tokens,
        precision="float32",
        mode="golden",
        forced=(),
        prompts_digest=digest_files([request.prompts]),
        prompts=tuple(
            PromptCase(id=name, ids=tuple(ids), generation=one.generation)
            for (name, ids), one in zip(prompts, truth, strict=True)
        ),
    )
